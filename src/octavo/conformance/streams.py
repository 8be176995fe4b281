"""Checks of POST /chat/completions with streaming."""

from octavo.conformance.chat import text
from octavo.conformance.check import Check, NotSupported, expect, expect_equal, expect_kind
from octavo.conformance.shapes import check_finish, check_head, check_usage, stop_text
from octavo.conformance.target import CheckTarget, Stream

GROUP = "streams"
KIND = "chat.completion.chunk"


def headers(target: CheckTarget) -> None:
    found = target.stream_chat().reply.headers.get("content-type", "")
    expect(found.startswith("text/event-stream"), f"content-type is {found!r}")


def no_buffering(target: CheckTarget) -> None:
    """Check the headers without which proxies buffer streams."""
    found = target.stream_chat().reply.headers
    if "cache-control" not in found and "x-accel-buffering" not in found:
        raise NotSupported("the stream has neither cache-control nor x-accel-buffering")
    expect("no-cache" in found.get("cache-control", ""), "cache-control is not no-cache")


def chunks(target: CheckTarget) -> None:
    stream = target.stream_chat()
    expect(stream.events, "there are no events")
    for event in stream.events:
        check_head(event, KIND, target.model)
        for choice in event["choices"]:
            expect_kind("index", choice.get("index"), int)
            expect_kind("delta", choice.get("delta"), dict)
            expect("finish_reason" in choice, "a choice has no finish_reason")
    expect(len({event["id"] for event in stream.events}) == 1, "the chunks have different ids")
    first = stream.choices(0)[0]["delta"]
    expect_equal("the role in the first delta", first.get("role"), "assistant")
    has_usage = any(event.get("usage") is not None for event in stream.events)
    expect(not has_usage, "usage was not requested")


def pieces(target: CheckTarget) -> None:
    stream = target.stream_chat()
    num_texts = sum(bool(choice["delta"].get("content")) for choice in stream.choices(0))
    expect(num_texts > 1 or len(stream.chat_text()) < 2, "the whole text arrived in one event")


def ending(target: CheckTarget) -> None:
    stream = target.stream_chat(n=1)
    expect(stream.is_done, "the stream does not end with [DONE]")
    _check_finishes(stream, 0)


def several(target: CheckTarget) -> None:
    fields = {"n": 2, "temperature": 1, "seed": 5}
    unstreamed = target.chat(**fields)
    stream = target.stream_chat(**fields)
    for index in range(2):
        _check_finishes(stream, index)
        expect_equal(f"the text of choice {index}", stream.chat_text(index), text(unstreamed, index))


def _check_finishes(stream: Stream, index: int) -> None:
    choices = stream.choices(index)
    expect(choices, f"choice {index} is missing")
    number = sum(choice["finish_reason"] is not None for choice in choices)
    expect(number == 1, f"choice {index} has {number} finish_reasons")
    expect(choices[-1]["finish_reason"] is not None, f"choice {index} continues after its finish_reason")
    check_finish(choices[-1])


def greedy_equals_unstreamed(target: CheckTarget) -> None:
    _check_same(target, {"temperature": 0})


def seeded_equals_unstreamed(target: CheckTarget) -> None:
    _check_same(target, {"temperature": 1, "seed": 11})


def _check_same(target: CheckTarget, fields: dict[str, int]) -> None:
    unstreamed = target.chat(**fields)
    stream = target.stream_chat(**fields)
    expect_equal("the streamed text", stream.chat_text(), text(unstreamed))
    expect_equal(
        "finish_reason", stream.choices(0)[-1]["finish_reason"], unstreamed["choices"][0]["finish_reason"]
    )


def stop(target: CheckTarget) -> None:
    """Check that a stream contains no part of the stop string."""
    plain = text(target.chat(max_tokens=32))
    stop = stop_text(plain)
    stream = target.stream_chat(max_tokens=32, stop=stop)
    expect_equal("the text", stream.chat_text(), plain[: plain.index(stop)])


def include_usage(target: CheckTarget) -> None:
    stream = target.stream_chat(stream_options={"include_usage": True})
    *others, last = stream.events
    expect(stream.is_done, "the stream does not end with [DONE]")
    expect_equal("choices of the last chunk", last.get("choices"), [])
    check_usage(last.get("usage"))
    expect(all(event.get("usage", 0) is None for event in others), "usage of the other chunks is not null")
    unstreamed = target.chat()["usage"]
    for name in ("prompt_tokens", "completion_tokens"):
        expect_equal(f"usage.{name}", last["usage"][name], unstreamed[name])


def logprobs(target: CheckTarget) -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    unstreamed = target.chat(**fields)["choices"][0]["logprobs"]["content"]
    stream = target.stream_chat(**fields)
    entries = [
        entry
        for choice in stream.choices(0)
        if choice.get("logprobs")
        for entry in choice["logprobs"]["content"]
    ]
    expect_equal("the tokens", [one["token"] for one in entries], [one["token"] for one in unstreamed])
    expect(entries == unstreamed, "logprobs differ from those without streaming")


CHECKS = (
    Check(GROUP, "content-type", headers),
    Check(GROUP, "anti-buffering headers", no_buffering, is_required=False),
    Check(GROUP, "chunk shape", chunks),
    Check(GROUP, "text arrives in pieces", pieces),
    Check(GROUP, "one finish_reason, then [DONE]", ending),
    Check(GROUP, "n", several, is_required=False),
    Check(GROUP, "temperature 0: same as unstreamed", greedy_equals_unstreamed),
    Check(GROUP, "seed: same as unstreamed", seeded_equals_unstreamed, is_required=False),
    Check(GROUP, "stop", stop),
    Check(GROUP, "include_usage", include_usage),
    Check(GROUP, "logprobs", logprobs, is_required=False),
)
