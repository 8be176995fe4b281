"""Checks of POST /completions."""

from typing import Any

from octavo.conformance.check import Check, expect, expect_equal, expect_kind
from octavo.conformance.shapes import (
    check_finish,
    check_head,
    check_indices,
    check_legacy_logprobs,
    check_usage,
    stop_text,
)
from octavo.conformance.target import PROMPT, CheckTarget

GROUP = "completions"
KIND = "text_completion"


def text(answer: Any, index: int = 0) -> str:
    (choice,) = (choice for choice in answer["choices"] if choice["index"] == index)
    expect_kind("text", choice.get("text"), str)
    found: str = choice["text"]
    return found


def answer_shape(target: CheckTarget) -> None:
    answer = target.complete()
    check_head(answer, KIND, target.model)
    check_indices(answer["choices"], 1)
    check_finish(answer["choices"][0])
    expect(text(answer), "the text is empty")
    expect(answer["choices"][0].get("logprobs") is None, "logprobs were not requested")


def usage(target: CheckTarget) -> None:
    answer = target.complete(max_tokens=3)
    check_usage(answer.get("usage"))
    expect(answer["usage"]["completion_tokens"] <= 3, "more tokens than max_tokens")
    longer = target.complete(prompt=PROMPT + PROMPT, max_tokens=3)
    expect(
        longer["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"],
        "prompt_tokens do not grow with the prompt",
    )


def max_tokens(target: CheckTarget) -> None:
    for limit in (1, 5):
        answer = target.complete(max_tokens=limit)
        (choice,) = answer["choices"]
        found = answer["usage"]["completion_tokens"]
        expect(found <= limit, f"{found} tokens with max_tokens {limit}")
        if choice["finish_reason"] == "length":
            expect_equal("completion_tokens at finish_reason length", found, limit)


def list_of_prompts(target: CheckTarget) -> None:
    prompts = [PROMPT, "Red, green,", "Monday, Tuesday,"]
    alone = [text(target.complete(prompt=prompt, max_tokens=8)) for prompt in prompts]
    together = target.complete(prompt=prompts, max_tokens=8)
    check_indices(together["choices"], len(prompts))
    check_usage(together.get("usage"))
    found = [text(together, index) for index in range(len(prompts))]
    expect(found == alone, "texts differ from those of separate requests")


def token_ids(target: CheckTarget) -> None:
    answer = target.complete(prompt=[5, 6, 7, 8], max_tokens=4)
    expect_equal("prompt_tokens of 4 ids", answer["usage"]["prompt_tokens"], 4)
    lists = target.complete(prompt=[[5, 6, 7, 8], [9, 10]], max_tokens=4)
    check_indices(lists["choices"], 2)
    expect_equal("the text", text(lists), text(answer))


def echo(target: CheckTarget) -> None:
    plain = text(target.complete())
    echoed = text(target.complete(echo=True))
    expect(echoed.startswith(PROMPT), f"the text begins with {echoed[:20]!r}")
    expect_equal("the text after the prompt", echoed.removeprefix(PROMPT), plain)


def logprobs(target: CheckTarget) -> None:
    answer = target.complete(logprobs=2, max_tokens=6)
    (choice,) = answer["choices"]
    check_legacy_logprobs(choice.get("logprobs"), has_prompt=False)
    if choice["finish_reason"] == "length":
        expect_equal("the number of tokens", len(choice["logprobs"]["tokens"]), 6)


def echoed_logprobs(target: CheckTarget) -> None:
    """Check the request that evaluation harnesses use to score a text."""
    answer = target.complete(logprobs=1, echo=True, max_tokens=1, seed=1234)
    (choice,) = answer["choices"]
    check_legacy_logprobs(choice.get("logprobs"), has_prompt=True)
    expected = answer["usage"]["prompt_tokens"] + 1
    found = len(choice["logprobs"]["tokens"])
    expect(found in (expected, expected - 1), f"{found} tokens with logprobs, not {expected}")
    expect_equal("the first text_offset", choice["logprobs"]["text_offset"][0], 0)


def several(target: CheckTarget) -> None:
    answer = target.complete(n=3, temperature=1, seed=5, max_tokens=6)
    check_indices(answer["choices"], 3)
    check_usage(answer.get("usage"))
    expect(len({text(answer, index) for index in range(3)}) > 1, "all choices are the same")


def stop(target: CheckTarget) -> None:
    plain = text(target.complete(max_tokens=32))
    stop = stop_text(plain)
    answer = target.complete(max_tokens=32, stop=stop)
    expect_equal("the text", text(answer), plain[: plain.index(stop)])
    expect_equal("finish_reason", answer["choices"][0]["finish_reason"], "stop")
    listed = target.complete(max_tokens=32, stop=["never written", stop])
    expect_equal("the text with a list of stop strings", text(listed), text(answer))


def streamed(target: CheckTarget) -> None:
    unstreamed = target.complete(temperature=1, seed=11)
    stream = target.stream_completion(temperature=1, seed=11)
    expect(stream.is_done, "the stream does not end with [DONE]")
    for event in stream.events:
        check_head(event, KIND, target.model)
    expect_equal("the text", stream.text(), text(unstreamed))
    reasons = [one["finish_reason"] for one in stream.choices(0) if one.get("finish_reason")]
    expect_equal("finish_reason", reasons, [unstreamed["choices"][0]["finish_reason"]])


CHECKS = (
    Check(GROUP, "response shape", answer_shape),
    Check(GROUP, "usage adds up", usage),
    Check(GROUP, "max_tokens", max_tokens),
    Check(GROUP, "list of prompts", list_of_prompts),
    Check(GROUP, "token ids", token_ids, is_required=False),
    Check(GROUP, "echo", echo, is_required=False),
    Check(GROUP, "logprobs", logprobs, is_required=False),
    Check(GROUP, "logprobs of the prompt", echoed_logprobs, is_required=False),
    Check(GROUP, "n", several, is_required=False),
    Check(GROUP, "stop", stop),
    Check(GROUP, "streamed", streamed),
)
