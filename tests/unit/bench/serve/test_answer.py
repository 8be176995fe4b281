"""Streams in network chunks of any size give the same times, counts and errors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.json_types import Json, JsonObject
from octavo.bench.serve.answer import MeasuredAnswer


def sse(*events: Json, end: str = "\n") -> bytes:
    lines = [": a comment"] + [
        f"data: {event if isinstance(event, str) else json.dumps(event)}" for event in events
    ]
    return "".join(line + 2 * end for line in lines).encode()


def text(content: str, finish: str | None = None, **more: Json) -> JsonObject:
    return {"id": "x", "choices": [{"index": 0, "text": content, "finish_reason": finish}], **more}


def usage(completion: int, cached: int | None = None) -> JsonObject:
    details: JsonObject = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    details["completion_tokens_details"] = {"reasoning_tokens": 0, "drafted_tokens": 6, "accepted_tokens": 5}
    return {"usage": {"prompt_tokens": 9, "completion_tokens": completion, **details}}


def read(*bodies: bytes, status: int = 200) -> MeasuredAnswer:
    """Read the bodies; body number n arrives at time n."""
    answer = MeasuredAnswer(0.0)
    answer.status = status
    for number, body in enumerate(bodies):
        answer.feed(body, float(number))
    answer.end(99.0)
    return answer


PLAIN = (text("a"), text("b"), text("c", "length"), {"choices": [], **usage(3, 4)}, "[DONE]")


@given(st.lists(st.integers(1, 400), max_size=30), st.sampled_from(["\n", "\r\n"]))
def test_network_chunk_boundaries_do_not_matter(cuts: list[int], end: str) -> None:
    whole, pieces = sse(*PLAIN, end=end), []
    for cut in cuts:
        pieces.append(whole[:cut])
        whole = whole[cut:]
    answer = read(*pieces, whole)
    assert answer.error is None
    assert len(answer.chunk_times) == 3
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (9, 4, 3)
    assert (answer.drafted_tokens, answer.accepted_tokens) == (6, 5)
    assert (answer.finish_reason, answer.is_done) == ("length", True)


def test_only_chunks_with_text_have_a_time() -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    said = {"choices": [{"index": 0, "delta": {"content": "yes"}}]}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    answer = read(sse(role), sse(thought), sse(role), sse(said, said), sse(last), sse("[DONE]"))
    assert answer.chunk_times == [1.0, 3.0, 3.0]
    assert answer.completion_tokens is None
    assert answer.error is None


def test_token_counts_per_chunk_are_used_when_reported() -> None:
    several = (text("ab", **usage(2)), text("", **usage(3)), text("c", "length", **usage(5)))
    answer = read(sse(*several, {"choices": [], **usage(5)}, "[DONE]"))
    assert answer.chunk_tokens == [2, 1, 2]
    ids = [{"choices": [{"text": "x", "token_ids": [1] * count}]} for count in (1, 3)]
    assert read(sse(*ids, "[DONE]")).chunk_tokens == [1, 3]


def test_the_final_usage_is_not_attributed_to_the_last_chunk() -> None:
    answer = read(sse(text("a"), text("b"), text("", "length", **usage(3)), "[DONE]"))
    assert answer.chunk_times == [0.0, 0.0]
    assert answer.chunk_tokens == []
    assert answer.completion_tokens == 3


def test_a_single_token_without_text_has_a_time() -> None:
    answer = read(sse(text("", "length")), sse({"choices": [], **usage(1)}, "[DONE]"))
    assert answer.chunk_times == [0.0]
    assert answer.error is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (sse(text("a"), {"error": {"message": "the engine died"}}, "[DONE]"), "the engine died"),
        (sse(text("a"), {"error": "died"}), "died"),
        (sse(text("a"), "{"), "the server sent an invalid event"),
        (sse(text("a")), "the stream ended early, without a finish reason or [DONE]"),
        (sse("[DONE]"), "the stream ended without a token"),
    ],
)
def test_stream_errors_are_reported(body: bytes, error: str) -> None:
    assert (read(body).error or "").startswith(error)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model"}}', "no such model"),
        (b'{"object": "error", "message": "no such model"}', "no such model"),
        (b'{"detail": "no such model"}', "no such model"),
        (b"no such model\n", "no such model"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_error_responses_of_any_shape_are_read(body: bytes, message: str) -> None:
    assert read(body[:5], body[5:], status=404).error == message
