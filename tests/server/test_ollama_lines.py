"""The lines of a stream of Ollama's API add up to the body of the same answer that is not streamed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.dialect.pieces import CallArguments, CallStart, Content, Piece, Reasoning, joined
from octavo.frontend.output import Choice, RequestOutput, StreamDelta
from octavo.protocol import Timings, TokenLogprob
from octavo.server.http.errors import invalid
from octavo.server.ollama.chat import message
from octavo.server.ollama.generate import response
from octavo.server.ollama.response import LINES, OllamaAnswer
from octavo.server.ollama.schema import OllamaBody
from octavo.text.huggingface import text_assets_from_directory
from octavo.text.tokenizer import Tokenizer
from server.ollama_lines import accumulated, lines_of, timeless

pytestmark = pytest.mark.xdist_group("server")


NAMES = st.sampled_from(["f", "g"])
TEXTS = st.text(st.sampled_from('ab\n{}": é漢😀'), min_size=1, max_size=8)
ARGUMENTS = st.one_of(
    st.dictionaries(TEXTS, st.none() | st.integers(-5, 5) | st.floats(-1, 1) | TEXTS, max_size=3).map(
        lambda value: json.dumps(value, indent=2)
    ),
    TEXTS,  # invalid, because the answer was cut off
    st.just(""),
)


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """Return the pieces of any answer, each cut into parts."""
    pieces: list[Piece] = [Reasoning(text) for text in draw(st.lists(TEXTS, max_size=3))]
    index = 0
    for is_call in draw(st.lists(st.booleans(), max_size=5)):
        if not is_call:
            pieces.append(Content(draw(TEXTS)))
            continue
        pieces.append(CallStart(index, draw(NAMES), f"call_{index}"))
        rest = draw(ARGUMENTS)
        while rest:
            cut = draw(st.integers(1, len(rest)))
            pieces.append(CallArguments(index, rest[:cut]))
            rest = rest[cut:]
        index += 1
    return pieces


@st.composite
def deltas_of(draw: st.DrawFn, pieces: list[Piece]) -> list[StreamDelta]:
    """Return the pieces as deltas, where neighbours may arrive together."""
    groups: list[list[Piece]] = [[]]
    for piece in pieces:
        if draw(st.booleans()):
            groups.append([])
        groups[-1].append(piece)
    return [
        StreamDelta(
            request_id="0",
            choice=0,
            text="".join(piece.text for piece in group if isinstance(piece, Content)),
            reasoning="".join(piece.text for piece in group if isinstance(piece, Reasoning)),
            calls=tuple(piece for piece in group if isinstance(piece, CallStart | CallArguments)),
            token_ids=(number,),
            logprobs=(TokenLogprob(number, -0.5, ((number, -0.5),)),),
            finish_reason="stop" if number == len(groups) - 1 else None,
        )
        for number, group in enumerate(groups)
    ]


class FinishedGeneration:
    """What an `OllamaAnswer` reads of a generation."""

    def __init__(self, tokenizer: Tokenizer, output: RequestOutput) -> None:
        self.state = SimpleNamespace(model=SimpleNamespace(tokenizer=tokenizer))
        self.context = SimpleNamespace(model="m", created=0, arrival=0.0)
        self.results = {0: output}


@given(data=st.data(), pieces=answers(), has_logprobs=st.booleans())
def test_lines_accumulate_to_the_whole_body(
    tiny_checkpoint: Path, data: st.DataObject, pieces: list[Piece], has_logprobs: bool
) -> None:
    deltas = data.draw(deltas_of(pieces))
    if not has_logprobs:
        deltas = [msgspec.structs.replace(delta, logprobs=()) for delta in deltas]
    parsed = joined(pieces)
    scores = tuple(score for delta in deltas for score in delta.logprobs)
    choice = Choice(
        index=0,
        text=parsed.content,
        reasoning=parsed.reasoning,
        calls=parsed.calls,
        token_ids=tuple(range(len(deltas))),
        logprobs=scores if has_logprobs else None,
        finish_reason="stop",
        timings=Timings(0.1, 0.2, 0.3),
    )
    output = RequestOutput(
        request_id="0",
        prompt=None,
        prompt_ids=(1, 2),
        prompt_logprobs=None,
        choices=(choice,),
        num_cached=0,
        seed=1,
    )
    tokenizer = Tokenizer(text_assets_from_directory(tiny_checkpoint))
    generation: Any = FinishedGeneration(tokenizer, output)
    for part in (message, response):
        writer = OllamaAnswer(OllamaBody.model_validate({}), part, generation)
        written = b"".join(event for delta in deltas for _, event in writer.encode_delta(delta))
        lines = lines_of(written + writer.encode_end())
        whole = json.loads(msgspec.json.encode(writer.full_body()))
        assert timeless(accumulated(lines)) == timeless(whole)
    shown = message("", None, [])["message"] | whole
    assert shown["response"] == parsed.content


def test_a_ping_is_space_before_the_next_line() -> None:
    """Clients parse every line, so that a ping must not be one."""
    assert json.loads(LINES.ping() + b'{"done":true}') == {"done": True}
    assert b"\n" not in LINES.ping()
    assert LINES.failure(invalid("no")) == b'{"error":"no"}\n'
