"""The same question, the same answer: alone, and in whatever company."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from octavo.conformance.chat import text
from octavo.conformance.check import Check, expect
from octavo.conformance.completions import text as completed_text
from octavo.conformance.target import PROMPT, Target, user

GROUP = "repeats"
AT_ONCE = 8
SAMPLED: Mapping[str, Any] = {"temperature": 1, "max_tokens": 24}


def seeded_chat(target: Target) -> None:
    first, second = (text(target.chat(**SAMPLED, seed=42)) for _ in range(2))
    expect(first == second, "two answers with one seed differ")


def seeded_completion(target: Target) -> None:
    first, second = (completed_text(target.complete(**SAMPLED, seed=42)) for _ in range(2))
    expect(first == second, "two answers with one seed differ")


def other_seeds(target: Target) -> None:
    answers = {text(target.chat(**SAMPLED, seed=seed)) for seed in range(4)}
    expect(len(answers) > 1, "four seeds, one answer")


def no_seed(target: Target) -> None:
    answers = {text(target.chat(**SAMPLED)) for _ in range(4)}
    expect(len(answers) > 1, "four answers without a seed are all the same")


def greedy_in_company(target: Target) -> None:
    _check_in_company(lambda i: text(target.chat(**_question(i) | {"temperature": 0})))


def seeded_in_company(target: Target) -> None:
    _check_in_company(lambda i: text(target.chat(**_question(i), seed=i)))


def completions_in_company(target: Target) -> None:
    _check_in_company(
        lambda i: completed_text(target.complete(**SAMPLED, prompt=f"{i}. {PROMPT * (i + 1)}", seed=i))
    )


def logprobs_in_company(target: Target) -> None:
    """The numbers themselves: a text may stay the same where they do not."""
    _check_in_company(
        lambda i: target.chat(**_question(i), seed=i, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]
    )


def _question(index: int) -> dict[str, Any]:
    """Of different lengths, so that they do not run in step."""
    return {"messages": user(f"Question {index}. " + "Tell me more. " * index), **SAMPLED}


def _check_in_company(ask: Callable[[int], Any]) -> None:
    alone = [ask(index) for index in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        together = list(pool.map(ask, range(AT_ONCE)))
    changed = sum(one != other for one, other in zip(alone, together, strict=True))
    expect(changed == 0, f"{changed} of {AT_ONCE} answers changed in company")


CHECKS = (
    Check(GROUP, "chat with a seed", seeded_chat, is_required=False),
    Check(GROUP, "completion with a seed", seeded_completion, is_required=False),
    Check(GROUP, "another seed, another answer", other_seeds, is_required=False),
    Check(GROUP, "no seed, another answer", no_seed),
    Check(GROUP, "8 at once: temperature 0", greedy_in_company),
    Check(GROUP, "8 at once: chats with seeds", seeded_in_company, is_required=False),
    Check(GROUP, "8 at once: completions with seeds", completions_in_company, is_required=False),
    Check(GROUP, "8 at once: logprobs", logprobs_in_company, is_required=False),
)
