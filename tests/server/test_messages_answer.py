"""Streams of the Anthropic API have legal events and accumulate to the complete answer in Anthropic's client.

This holds whatever the model wrote, and however it was divided into deltas.
"""

import contextlib
import json
from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st

from data.json_types import Json, JsonObject
from octavo.dialect.pieces import CallArguments, CallStart, ParsedCall
from octavo.frontend.output import Choice, StreamDelta
from octavo.protocol import Timings
from octavo.server.anthropic.answer import MessagesAnswer
from octavo.server.anthropic.blocks import INVALID_JSON, given_input
from octavo.server.anthropic.schema import MessagesRequest
from octavo.server.http.sse import Framing, encode, named_event
from server.anthropic_client import ASKED, RecordedAnswer

FRAMING = Framing(lambda: b"", lambda error: b"")
NUM_PROMPT, NUM_CACHED = 20, 7
RECORDED = RecordedAnswer()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3)
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
ARGUMENTS = OBJECTS.map(json.dumps) | st.just("")


@dataclass(frozen=True)
class Written:
    """What the model wrote: reasoning, then texts and calls (names and arguments)."""

    reasoning: str
    parts: list[str | tuple[str, str]]
    finish: str
    stop_reason: str | int | None
    num_held: int  # characters of text that a stop string holds back
    cuts: list[bool]  # whether a delta ends after each piece, repeated

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


WRITTEN = st.builds(
    Written,
    st.text(max_size=5),
    st.lists(TEXTS | st.tuples(TEXTS, ARGUMENTS), max_size=6),
    st.sampled_from(["stop", "length"]),
    st.sampled_from([None, 5, "END"]),
    st.integers(0, 9),
    st.lists(st.booleans(), min_size=1, max_size=9),
)


def pieces_of(written: Written) -> list[str | CallStart | CallArguments]:
    """Return single characters of text, and parts of calls."""
    found: list[str | CallStart | CallArguments] = []
    index = offset = 0
    for part in written.parts:
        if isinstance(part, str):
            found += part
            offset += len(part)
            continue
        name, arguments = part
        found.append(CallStart(index, name, f"id{index}", offset))
        found += [CallArguments(index, arguments[i : i + 3]) for i in range(0, len(arguments), 3)]
        index += 1
    return found


def deltas_of(written: Written) -> list[StreamDelta]:
    """Divide the answer. Text comes after calls by which it is overtaken while it is held back."""
    groups: list[tuple[str, list[CallStart | CallArguments], str]] = [
        ("", [], char) for char in written.reasoning
    ]
    held = ""
    for piece in pieces_of(written):
        if isinstance(piece, str):
            held += piece
            free = max(len(held) - written.num_held, 0)
            groups.append((held[:free], [], ""))
            held = held[free:]
        else:
            groups.append(("", [piece], ""))
    groups.append((held, [], ""))
    joined: list[tuple[str, list[CallStart | CallArguments], str]] = [("", [], "")]
    for number, (text, calls, reasoning) in enumerate(groups):
        before = joined[-1]
        joined[-1] = (before[0] + text, before[1] + calls, before[2] + reasoning)
        if written.cuts[number % len(written.cuts)] and number + 1 < len(groups):
            joined.append(("", [], ""))
    return [
        StreamDelta(
            request_id="0",
            choice=0,
            text=text,
            reasoning=reasoning,
            calls=tuple(calls),
            token_ids=(1,),
            finish_reason=written.finish if number == len(joined) - 1 else None,
            num_cached=NUM_CACHED,
        )
        for number, (text, calls, reasoning) in enumerate(joined)
    ]


def writer_of(written: Written, **fields: Json) -> MessagesAnswer:
    """Return a writer for a generation that is done."""
    starts = [piece for piece in pieces_of(written) if isinstance(piece, CallStart)]
    arguments = [part[1] for part in written.parts if not isinstance(part, str)]
    choice = Choice(
        index=0,
        text=written.text,
        reasoning=written.reasoning or None,
        calls=tuple(
            ParsedCall(start.name, text, start.id, start.offset)
            for start, text in zip(starts, arguments, strict=True)
        ),
        num_reasoning=len(written.reasoning),
        token_ids=tuple(range(9)),
        logprobs=None,
        finish_reason=written.finish,
        stop_reason=written.stop_reason,
        timings=Timings(0.0, 0.0, 0.0),
    )
    body = MessagesRequest.model_validate(ASKED | fields)
    params = SimpleNamespace(max_tokens=64)
    generation = SimpleNamespace(
        context=SimpleNamespace(response_id="msg_1", model="scripted"),
        prepared=[SimpleNamespace(prompt_ids=tuple(range(NUM_PROMPT)), params=params)],
        results={0: SimpleNamespace(choices=(choice,), num_cached=NUM_CACHED)},
    )
    return MessagesAnswer(body, FRAMING, generation)  # type: ignore[arg-type]


def stream_of(written: Written, **fields: Json) -> bytes:
    writer = writer_of(written, **fields)
    events = [event for delta in deltas_of(written) for _, event in writer.encode_delta(delta)]
    return b"".join([*events, writer.encode_end()])


def events_in(stream: bytes) -> list[JsonObject]:
    found = []
    for event in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def blocks_checked(events: list[JsonObject]) -> list[str]:
    """Check the order of the events, and return the types of the blocks."""
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[0]["type"] == "message_start"
    kinds: list[str] = []
    deltas_of_kind = {
        "thinking": {"thinking_delta", "signature_delta"},
        "text": {"text_delta"},
        "tool_use": {"input_json_delta"},
    }
    is_open = False
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            kinds.append(event["content_block"]["type"])
        else:
            assert is_open
        assert event["index"] == len(kinds) - 1
        if event["type"] == "content_block_delta":
            assert event["delta"]["type"] in deltas_of_kind[kinds[-1]]
        is_open = event["type"] != "content_block_stop"
    assert not is_open
    return kinds


@given(WRITTEN, st.sampled_from(["summarized", "omitted"]))
def test_events_are_legal_and_accumulate_to_the_complete_answer(written: Written, display: str) -> None:
    thinking = {"thinking": {"type": "adaptive", "display": display}}
    whole = encode(writer_of(written, **thinking).full_body())
    stream = stream_of(written, **thinking)
    kinds = blocks_checked(events_in(stream))
    expected = RECORDED.body(whole).messages.create(**ASKED)
    assert accumulated(stream) == expected.to_dict()
    assert [block.type for block in expected.content] == kinds
    assert kinds.count("thinking") == bool(written.reasoning)
    # The order is that of the model. Adjacent texts are one block.
    merged: list[str | None] = []
    for part in written.parts:
        if isinstance(part, str) and merged and merged[-1] is not None:
            merged[-1] += part
        else:
            merged.append(part if isinstance(part, str) else None)
    shown = [block.text if block.type == "text" else None for block in expected.content]
    if written.parts:
        assert shown[bool(written.reasoning) :] == merged
    elif not written.reasoning:
        assert expected.to_dict()["content"] == [{"type": "text", "text": ""}]


@given(WRITTEN, st.lists(st.booleans(), min_size=1, max_size=9))
def test_the_blocks_do_not_depend_on_how_the_answer_was_divided(written: Written, cuts: list[bool]) -> None:
    other = Written(written.reasoning, written.parts, written.finish, written.stop_reason, 0, cuts)
    assert accumulated(stream_of(written)) == accumulated(stream_of(other))


def accumulated(stream: bytes) -> JsonObject:
    with RECORDED.stream(stream).messages.stream(**ASKED) as events:
        return events.get_final_message().to_dict()


def test_a_stream_that_is_cut_anywhere_has_a_prefix_of_the_events() -> None:
    parts: list[str | tuple[str, str]] = ["Let me see: ü", ("add", '{"a": 1}'), "then"]
    stream = stream_of(Written("so", parts, "stop", None, 3, [True, False, True]))
    stream = named_event("ping", {"type": "ping"}) + stream
    whole = read(stream)
    assert len(whole) > 12
    lengths = []
    for size in range(len(stream) + 1):
        found = read(stream[:size])
        assert found == whole[: len(found)]
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(len(whole) + 1))


def read(stream: bytes) -> list[RawMessageStreamEvent]:
    """Return the events that the client yields before the stream ends or breaks."""
    found: list[RawMessageStreamEvent] = []
    with contextlib.suppress(ValueError):  # the event that was cut is not JSON, or not UTF-8
        found.extend(RECORDED.stream(stream).messages.create(**ASKED, stream=True))
    return found


REASONS = [
    ("stop", None, [], ("end_turn", None)),
    ("stop", 7, ["text"], ("end_turn", None)),
    ("stop", "END", ["text"], ("stop_sequence", "END")),
    ("stop", None, [("add", "{}")], ("tool_use", None)),
    ("length", None, [("add", "{}")], ("max_tokens", None)),
]


@pytest.mark.parametrize(("finish", "stop_reason", "parts", "expected"), REASONS)
def test_stop_reasons(
    finish: str,
    stop_reason: str | int | None,
    parts: list[str | tuple[str, str]],
    expected: tuple[str, str | None],
) -> None:
    written = Written("", parts, finish, stop_reason, 0, [True])
    body = writer_of(written).full_body()
    assert (body["stop_reason"], body["stop_sequence"]) == expected
    beyond = writer_of(written, max_tokens=65).full_body()["stop_reason"]
    assert beyond == ("model_context_window_exceeded" if finish == "length" else expected[0])


def test_usage_has_cached_tokens_apart() -> None:
    usage = writer_of(Written("abc", [], "stop", None, 0, [True])).full_body()["usage"]
    assert usage == {
        "input_tokens": NUM_PROMPT - NUM_CACHED,
        "cache_read_input_tokens": NUM_CACHED,
        "cache_creation_input_tokens": 0,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 3},
    }


CUT = '{"a": [1, {"b": "x"}], "long": 123456789012345678901234567890, "c": "yes'


@pytest.mark.parametrize("size", range(len(CUT)))
def test_a_call_that_was_cut_has_the_members_that_the_client_gets_from_a_stream(size: int) -> None:
    written = Written("", [("add", CUT[:size])], "length", None, 0, [True])
    whole = encode(writer_of(written).full_body())
    message = RECORDED.body(whole).messages.create(**ASKED)
    assert message.stop_reason == "max_tokens"
    assert accumulated(stream_of(written)) == message.to_dict()


@pytest.mark.parametrize("text", ["[1]", "null", "{'a': 1}", '{"a": tru}', '{"a": NaN}', '{"a": "\\ud800"}'])
def test_arguments_that_are_no_object_stay_text(text: str) -> None:
    for is_cut in (True, False):
        assert given_input(text, is_cut=is_cut) == {INVALID_JSON: text}
    assert given_input('{"a": 1', is_cut=False) == {INVALID_JSON: '{"a": 1'}


def test_numbers_of_arguments_stay_as_written() -> None:
    text = '{"a": 1e999, "b": 123456789012345678901234567890, "c": 1.10}'
    assert msgspec.json.encode({"input": given_input(text, is_cut=False)}).decode() == f'{{"input":{text}}}'


def test_the_types_of_the_client_accept_the_answer() -> None:
    body = encode(writer_of(Written("a", ["b", ("c", "{}")], "stop", None, 0, [True])).full_body())
    assert Message.model_validate_json(body, strict=True).content[0].type == "thinking"
