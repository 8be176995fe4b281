"""Checks of POST /chat/completions without streaming."""

from typing import Any

from octavo.conformance.check import Check, expect, expect_equal, expect_kind
from octavo.conformance.shapes import (
    check_chat_logprobs,
    check_finish,
    check_head,
    check_indices,
    check_usage,
    stop_text,
)
from octavo.conformance.target import GREETING, CheckTarget, user

GROUP = "chat"
KIND = "chat.completion"


def text(answer: Any, index: int = 0) -> str:
    (choice,) = (choice for choice in answer["choices"] if choice["index"] == index)
    expect_kind("message", choice.get("message"), dict)
    expect_kind("message.content", choice["message"].get("content"), str)
    found: str = choice["message"]["content"]
    return found


def answer_shape(target: CheckTarget) -> None:
    answer = target.chat()
    check_head(answer, KIND, target.model)
    check_indices(answer["choices"], 1)
    (choice,) = answer["choices"]
    check_finish(choice)
    expect(text(answer), "the content is empty")
    expect_equal("message.role", choice["message"].get("role"), "assistant")
    expect(choice.get("logprobs") is None, "logprobs were not requested")


def usage(target: CheckTarget) -> None:
    answer = target.chat()
    check_usage(answer.get("usage"))
    longer = target.chat(messages=user(GREETING + GREETING))
    grows = longer["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]
    expect(grows, "prompt_tokens do not grow with the messages")


def roles(target: CheckTarget) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        *user("Hello."),
        {"role": "assistant", "content": "Hello!"},
        *user("And now?"),
    ]
    answer = target.chat(messages=messages)
    shorter = target.chat(messages=messages[:2])
    expect_kind("message.content", text(answer), str)
    grows = answer["usage"]["prompt_tokens"] > shorter["usage"]["prompt_tokens"]
    expect(grows, "prompt_tokens do not grow with the conversation")


def developer(target: CheckTarget) -> None:
    """Check the newer name of the system role.

    Two messages are compared, because a template may insert a default text if there is no message.
    """
    brief, wordy = (target.chat(messages=_with_developer("Be brief. " * times)) for times in (1, 8))
    expect_kind("message.content", text(brief), str)
    grows = wordy["usage"]["prompt_tokens"] > brief["usage"]["prompt_tokens"]
    expect(grows, "the developer message is not in the prompt")


def _with_developer(content: str) -> list[dict[str, Any]]:
    return [{"role": "developer", "content": content}, *user("Hello.")]


def text_parts(target: CheckTarget) -> None:
    plain = target.chat(messages=user(GREETING))
    parts = target.chat(messages=user([{"type": "text", "text": GREETING}]))
    expect_equal("the content", text(parts), text(plain))
    found, expected = (answer["usage"]["prompt_tokens"] for answer in (parts, plain))
    expect_equal("prompt_tokens", found, expected)


def max_completion_tokens(target: CheckTarget) -> None:
    """Check that the newer name has precedence over max_tokens."""
    answer = target.chat(max_completion_tokens=4, max_tokens=2)
    (choice,) = answer["choices"]
    found = answer["usage"]["completion_tokens"]
    expect(found <= 4, f"{found} tokens with max_completion_tokens 4")
    if choice["finish_reason"] == "length":
        expect_equal("completion_tokens at finish_reason length", found, 4)


def ignored_fields(target: CheckTarget) -> None:
    plain = target.chat()
    answer = target.chat(user="somebody", metadata={"a": "b"}, store=False, a_field_of_tomorrow=1)
    expect_equal("the content", text(answer), text(plain))


def logprobs(target: CheckTarget) -> None:
    answer = target.chat(logprobs=True, top_logprobs=3, max_tokens=6)
    (choice,) = answer["choices"]
    number = answer["usage"]["completion_tokens"] if choice["finish_reason"] == "length" else None
    check_chat_logprobs(choice.get("logprobs"), 3, number)
    first = choice["logprobs"]["content"][0]
    expect_equal("at temperature 0, the token", first["token"], first["top_logprobs"][0]["token"])
    without = target.chat(logprobs=True, max_tokens=2)
    check_chat_logprobs(without["choices"][0].get("logprobs"), 0, None)


def several(target: CheckTarget) -> None:
    answer = target.chat(n=3, temperature=1, seed=5)
    check_indices(answer["choices"], 3)
    check_usage(answer.get("usage"))
    expect(len({text(answer, index) for index in range(3)}) > 1, "all choices are the same")


def stop(target: CheckTarget) -> None:
    plain = text(target.chat(max_tokens=32))
    stop = stop_text(plain)
    answer = target.chat(max_tokens=32, stop=[stop])
    expect_equal("the content", text(answer), plain[: plain.index(stop)])
    expect_equal("finish_reason", answer["choices"][0]["finish_reason"], "stop")


CHECKS = (
    Check(GROUP, "response shape", answer_shape),
    Check(GROUP, "usage adds up", usage),
    Check(GROUP, "roles", roles),
    Check(GROUP, "role developer", developer, is_required=False),
    Check(GROUP, "text parts", text_parts),
    Check(GROUP, "max_completion_tokens", max_completion_tokens),
    Check(GROUP, "ignored and unknown fields", ignored_fields),
    Check(GROUP, "logprobs", logprobs, is_required=False),
    Check(GROUP, "n", several, is_required=False),
    Check(GROUP, "stop", stop),
)
