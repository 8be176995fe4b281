"""The outcomes of checks."""

import pytest

from data.json_types import Json
from octavo.conformance.check import Check, CheckOutcome, NotSupported, Wrong, expect_kind, run_check
from octavo.conformance.shapes import check_legacy_logprobs, stop_text
from octavo.conformance.target import CheckTarget, UnexpectedStatus, read_stream
from octavo.conformance.transport import Reply, Request, Unreachable


def never(request: Request) -> Reply:
    raise AssertionError


def refusal(status: int, body: bytes) -> UnexpectedStatus:
    return UnexpectedStatus(Reply(status, {}, body))


IN_WORDS = b'{"error": {"message": "no such field"}}'


@pytest.mark.parametrize(
    ("raised", "is_required", "outcome"),
    [
        (None, True, CheckOutcome.PASSED),
        (Wrong("no"), False, CheckOutcome.FAILED),
        (Unreachable("gone"), False, CheckOutcome.FAILED),
        (KeyError("choices"), False, CheckOutcome.FAILED),
        (NotSupported("nothing to see"), True, CheckOutcome.NOT_SUPPORTED),
        (refusal(400, IN_WORDS), False, CheckOutcome.NOT_SUPPORTED),
        (refusal(400, IN_WORDS), True, CheckOutcome.FAILED),
        (refusal(400, b"no"), False, CheckOutcome.FAILED),
        (refusal(422, IN_WORDS), False, CheckOutcome.FAILED),
        (refusal(500, IN_WORDS), False, CheckOutcome.FAILED),
        (refusal(302, IN_WORDS), False, CheckOutcome.FAILED),
    ],
)
def test_outcomes_of_checks(raised: Exception | None, is_required: bool, outcome: CheckOutcome) -> None:
    def run(target: CheckTarget) -> None:
        if raised is not None:
            raise raised

    result = run_check(Check("group", "name", run, is_required), CheckTarget(never))
    assert result.outcome == outcome
    assert bool(result.detail) == (raised is not None)


@pytest.mark.parametrize(
    ("value", "kind", "is_right"),
    [(1, int, True), (True, int, False), (1, float, True), (None, float, False), (True, float, False)],
)
def test_types_follow_json(value: Json, kind: type, is_right: bool) -> None:
    if is_right:
        expect_kind("it", value, kind)
        return
    with pytest.raises(Wrong, match="not of type"):
        expect_kind("it", value, kind)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_streams_are_parsed_according_to_the_specification(end: str) -> None:
    body = end.join([": ping", "", 'data: {"choices": []}', "", 'data:{"a": 1}', "", "data: [DONE]", "", ""])
    stream = read_stream(Reply(200, {}, body.encode()))
    assert stream.events == ({"choices": []}, {"a": 1})
    assert stream.is_done


@pytest.mark.parametrize(
    "body", [b"", b"data: {}\n\n", b"data: [DONE]\n\ndata: {}\n\n", b"data: [DONE]\n\n" * 2]
)
def test_a_stream_must_end_with_exactly_one_done(body: bytes) -> None:
    assert not read_stream(Reply(200, {}, body)).is_done


def test_stop_strings_are_inner_and_decodable() -> None:
    assert stop_text("hello") == "el"
    assert stop_text("a\ufffd\ufffdb") == "b"
    with pytest.raises(NotSupported):
        stop_text("a")
    with pytest.raises(NotSupported):
        stop_text("\ufffd" * 9)


def test_a_token_cannot_have_a_higher_logprob_than_the_top_token() -> None:
    logprobs = {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"b": -0.25, "a": -0.5}],
        "text_offset": [0],
    }
    check_legacy_logprobs(logprobs, has_prompt=False)
    with pytest.raises(Wrong, match="higher logprob"):
        check_legacy_logprobs(logprobs | {"top_logprobs": [{"a": -0.75}]}, has_prompt=False)
    with pytest.raises(Wrong, match="different lengths"):
        check_legacy_logprobs(logprobs | {"text_offset": []}, has_prompt=False)
