"""Ctrl-C at each point of a streamed answer."""

from collections.abc import Iterator

import pytest

from octavo.cli.answer import STOPPED, ignore, stream_answer
from octavo.errors import RequestError
from octavo.frontend.output import StreamDelta
from octavo.protocol import SamplingParams
from unit.cli.scripted import Scripted

PARAMS = SamplingParams(seed=1)


def test_ctrl_c_while_writing_a_delta_aborts_the_request(scripted: Scripted) -> None:
    llm = scripted([["a", "b", "c"]])
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if text == "b":
            raise KeyboardInterrupt

    answer = stream_answer(llm, lambda: llm.stream("x", PARAMS), write, seed=1, write_reasoning=ignore)
    assert (written, answer.text, answer.finish_reason) == (["a", "b"], "ab", STOPPED)
    assert llm.num_given_up == 1


def test_ctrl_c_while_starting_the_request(scripted: Scripted) -> None:
    def start() -> Iterator[StreamDelta]:
        raise KeyboardInterrupt

    answer = stream_answer(scripted([]), start, lambda text: None, seed=1, write_reasoning=ignore)
    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("", 0, STOPPED)


def test_ctrl_c_after_the_last_delta_still_counts_as_stopped(scripted: Scripted) -> None:
    def write(text: str) -> None:
        if not text:
            raise KeyboardInterrupt

    llm = scripted([["a"]])
    answer = stream_answer(llm, lambda: llm.stream("x", PARAMS), write, seed=1, write_reasoning=ignore)
    assert answer.finish_reason == STOPPED


def test_a_failed_answer_closes_the_stream(scripted: Scripted) -> None:
    closed = []

    def deltas() -> Iterator[StreamDelta]:
        try:
            yield StreamDelta(request_id="r", choice=0, text="a", token_ids=(1,), error="NaN in the logits")
        finally:
            closed.append(True)

    stream = deltas()
    with pytest.raises(RequestError, match="NaN in the logits"):
        stream_answer(scripted([]), lambda: stream, lambda text: None, seed=1, write_reasoning=ignore)
    assert closed == [True]
