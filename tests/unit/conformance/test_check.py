"""What comes of a check, whatever happens in it."""

import pytest

from data.json_types import Json
from octavo.conformance.check import Check, NotSupported, Outcome, Wrong, expect_kind, run_check
from octavo.conformance.shapes import check_legacy_logprobs, stop_text
from octavo.conformance.target import Refused, Target, read_stream
from octavo.conformance.transport import Reply, Request, Unreachable


def never(request: Request) -> Reply:
    raise AssertionError


def refusal(status: int, body: bytes) -> Refused:
    return Refused(Reply(status, {}, body))


IN_WORDS = b'{"error": {"message": "no such field"}}'


@pytest.mark.parametrize(
    ("raised", "is_required", "outcome"),
    [
        (None, True, Outcome.PASSED),
        (Wrong("no"), False, Outcome.FAILED),
        (Unreachable("gone"), False, Outcome.FAILED),
        (KeyError("choices"), False, Outcome.FAILED),
        (NotSupported("nothing to see"), True, Outcome.NOT_SUPPORTED),
        (refusal(400, IN_WORDS), False, Outcome.NOT_SUPPORTED),
        (refusal(400, IN_WORDS), True, Outcome.FAILED),
        (refusal(400, b"no"), False, Outcome.FAILED),
        (refusal(422, IN_WORDS), False, Outcome.FAILED),
        (refusal(500, IN_WORDS), False, Outcome.FAILED),
        (refusal(302, IN_WORDS), False, Outcome.FAILED),
    ],
)
def test_outcomes(raised: Exception | None, is_required: bool, outcome: Outcome) -> None:
    def run(target: Target) -> None:
        if raised is not None:
            raise raised

    result = run_check(Check("group", "name", run, is_required), Target(never))
    assert result.outcome == outcome
    assert bool(result.detail) == (raised is not None)


@pytest.mark.parametrize(
    ("value", "kind", "is_right"),
    [(1, int, True), (True, int, False), (1, float, True), (None, float, False), (True, float, False)],
)
def test_kinds_are_those_of_json(value: Json, kind: type, is_right: bool) -> None:
    if is_right:
        expect_kind("it", value, kind)
        return
    with pytest.raises(Wrong, match="not of the kind"):
        expect_kind("it", value, kind)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_is_read_by_the_letter(end: str) -> None:
    body = end.join([": ping", "", 'data: {"choices": []}', "", 'data:{"a": 1}', "", "data: [DONE]", "", ""])
    stream = read_stream(Reply(200, {}, body.encode()))
    assert stream.events == ({"choices": []}, {"a": 1})
    assert stream.is_done


@pytest.mark.parametrize(
    "body", [b"", b"data: {}\n\n", b"data: [DONE]\n\ndata: {}\n\n", b"data: [DONE]\n\n" * 2]
)
def test_a_stream_is_done_once_and_at_its_end(body: bytes) -> None:
    assert not read_stream(Reply(200, {}, body)).is_done


def test_a_stop_is_inside_and_readable() -> None:
    assert stop_text("hello") == "el"
    assert stop_text("a\ufffd\ufffdb") == "b"
    with pytest.raises(NotSupported):
        stop_text("a")
    with pytest.raises(NotSupported):
        stop_text("\ufffd" * 9)


def test_a_token_is_not_likelier_than_the_best() -> None:
    logprobs = {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"b": -0.25, "a": -0.5}],
        "text_offset": [0],
    }
    check_legacy_logprobs(logprobs, has_prompt=False)
    with pytest.raises(Wrong, match="likelier"):
        check_legacy_logprobs(logprobs | {"top_logprobs": [{"a": -0.75}]}, has_prompt=False)
    with pytest.raises(Wrong, match="different lengths"):
        check_legacy_logprobs(logprobs | {"text_offset": []}, has_prompt=False)
