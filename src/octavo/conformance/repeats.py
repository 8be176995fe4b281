"""Checks that equal requests get equal answers, alone and under load."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from octavo.conformance.chat import text
from octavo.conformance.check import Check, expect
from octavo.conformance.completions import text as completed_text
from octavo.conformance.target import PROMPT, CheckTarget, user

GROUP = "repeats"
CONCURRENCY = 8
SAMPLED: Mapping[str, Any] = {"temperature": 1, "max_tokens": 24}


def seeded_chat(target: CheckTarget) -> None:
    first, second = (text(target.chat(**SAMPLED, seed=42)) for _ in range(2))
    expect(first == second, "two answers with the same seed differ")


def seeded_completion(target: CheckTarget) -> None:
    first, second = (completed_text(target.complete(**SAMPLED, seed=42)) for _ in range(2))
    expect(first == second, "two answers with the same seed differ")


def other_seeds(target: CheckTarget) -> None:
    answers = {text(target.chat(**SAMPLED, seed=seed)) for seed in range(4)}
    expect(len(answers) > 1, "four seeds give the same answer")


def no_seed(target: CheckTarget) -> None:
    answers = {text(target.chat(**SAMPLED)) for _ in range(4)}
    expect(len(answers) > 1, "four answers without a seed are identical")


def greedy_under_load(target: CheckTarget) -> None:
    _check_under_load(lambda i: text(target.chat(**_question(i) | {"temperature": 0})))


def seeded_under_load(target: CheckTarget) -> None:
    _check_under_load(lambda i: text(target.chat(**_question(i), seed=i)))


def completions_under_load(target: CheckTarget) -> None:
    _check_under_load(
        lambda i: completed_text(target.complete(**SAMPLED, prompt=f"{i}. {PROMPT * (i + 1)}", seed=i))
    )


def logprobs_under_load(target: CheckTarget) -> None:
    """Compare logprobs, which may differ even if the text is the same."""
    _check_under_load(
        lambda i: target.chat(**_question(i), seed=i, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]
    )


def _question(index: int) -> dict[str, Any]:
    """Return questions of different lengths, so that their steps do not coincide."""
    return {"messages": user(f"Question {index}. " + "Tell me more. " * index), **SAMPLED}


def _check_under_load(ask: Callable[[int], Any]) -> None:
    alone = [ask(index) for index in range(CONCURRENCY)]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        together = list(pool.map(ask, range(CONCURRENCY)))
    changed = sum(one != other for one, other in zip(alone, together, strict=True))
    expect(changed == 0, f"{changed} of {CONCURRENCY} answers changed under load")


CHECKS = (
    Check(GROUP, "chat with a seed", seeded_chat, is_required=False),
    Check(GROUP, "completion with a seed", seeded_completion, is_required=False),
    Check(GROUP, "different seeds, different answers", other_seeds, is_required=False),
    Check(GROUP, "no seed, different answers", no_seed),
    Check(GROUP, "8 concurrent: temperature 0", greedy_under_load),
    Check(GROUP, "8 concurrent: chats with seeds", seeded_under_load, is_required=False),
    Check(GROUP, "8 concurrent: completions with seeds", completions_under_load, is_required=False),
    Check(GROUP, "8 concurrent: logprobs", logprobs_under_load, is_required=False),
)
