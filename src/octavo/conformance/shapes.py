"""Checks of parts that several kinds of responses share."""

from typing import Any

from octavo.conformance.check import NotSupported, expect, expect_equal, expect_kind

FINISH_REASONS = ("stop", "length")


def check_head(answer: Any, kind: str, model: str) -> None:
    expect_kind("the answer", answer, dict)
    for name, expected in (("id", str), ("created", int), ("model", str), ("choices", list)):
        expect_kind(name, answer.get(name), expected)
    expect(answer["id"], "id is empty")
    expect_equal("object", answer.get("object"), kind)
    expect_equal("model", answer["model"], model)


def check_finish(choice: Any) -> None:
    expect("finish_reason" in choice, "a choice has no finish_reason")
    reason = choice["finish_reason"]
    expect(reason in FINISH_REASONS, f"finish_reason is {reason!r}")


def check_usage(usage: Any) -> None:
    expect_kind("usage", usage, dict)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        expect_kind(f"usage.{name}", usage.get(name), int)
    prompt, completion, total = (usage[f"{part}_tokens"] for part in ("prompt", "completion", "total"))
    expect(prompt > 0, "usage.prompt_tokens is not positive")
    expect(total == prompt + completion, f"usage: {prompt} + {completion} is not {total}")


def check_indices(choices: Any, number: int) -> None:
    expect_kind("choices", choices, list)
    found = sorted(choice.get("index", -1) for choice in choices)
    expect(found == list(range(number)), f"the choices have the indices {found}")


def check_chat_logprobs(logprobs: Any, num_top: int, num_tokens: int | None) -> None:
    expect_kind("logprobs", logprobs, dict)
    entries = logprobs.get("content")
    expect_kind("logprobs.content", entries, list)
    if num_tokens is not None:
        expect_equal("the number of logprobs", len(entries), num_tokens)
    for entry in entries:
        _check_token(entry)
        top = entry.get("top_logprobs")
        expect_kind("top_logprobs", top, list)
        expect_equal("the number of top_logprobs", len(top), num_top)
        for other in top:
            _check_token(other)
        order = [other["logprob"] for other in top]
        expect(order == sorted(order, reverse=True), "top_logprobs are not in descending order")


def _check_token(entry: Any) -> None:
    expect_kind("a token's logprobs", entry, dict)
    expect_kind("token", entry.get("token"), str)
    expect_kind("logprob", entry.get("logprob"), float)
    expect(entry["logprob"] <= 0, "a logprob is positive")
    expect("bytes" in entry, "a token has no bytes")
    if entry["bytes"] is not None:
        expect(all(0 <= byte < 256 for byte in entry["bytes"]), "a token's bytes are not in 0..255")


LEGACY_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def check_legacy_logprobs(logprobs: Any, *, has_prompt: bool) -> None:
    expect_kind("logprobs", logprobs, dict)
    for name in LEGACY_LISTS:
        expect_kind(f"logprobs.{name}", logprobs.get(name), list)
    lengths = {name: len(logprobs[name]) for name in LEGACY_LISTS}
    expect(len(set(lengths.values())) == 1, f"lists of different lengths: {list(lengths.values())}")
    expect(lengths["tokens"] > 0, "the lists are empty")
    offsets = logprobs["text_offset"]
    expect(offsets == sorted(offsets), "text_offset decreases")
    scores, best = list(logprobs["token_logprobs"]), list(logprobs["top_logprobs"])
    if has_prompt:
        expect(scores.pop(0) is None, "the first token has a logprob although it has no context")
        best.pop(0)
    for score, top in zip(scores, best, strict=True):
        expect_kind("a token's logprob", score, float)
        expect_kind("a token's top_logprobs", top, dict)
        # Evaluation harnesses consider a token the most likely one if its logprob equals the best exactly.
        expect(score <= max(top.values()), "a token has a higher logprob than the best one")
        expect(score in top.values(), "a token's own logprob is not in its top_logprobs")


def stop_text(text: str) -> str:
    """Return one or two printable characters of an answer, to use as the stop string of an equal request."""
    for at in range(1, len(text) - 1):
        stop = text[at : at + 2]
        if stop.isprintable() and "\ufffd" not in stop and stop.strip():
            return stop
    for at in range(1, len(text)):
        if text[at].isprintable() and text[at] not in "\ufffd ":
            return text[at]
    raise NotSupported("the answer is too short to test a stop string")
