"""Streams that continue after a lost connection: the rest has the same bytes, also from another server."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from data.json_types import Json
from octavo.frontend.output import StreamDelta
from octavo.frontend.text_model import TextModel
from octavo.protocol import FinishReason
from octavo.server import answer
from octavo.server.event_ids import (
    MAX_CHOICES,
    MAX_ID,
    ChoicePosition,
    EventIds,
    StreamOrigin,
    StreamPosition,
    answer_tag,
    make_event_ids,
    resumed_stream,
)
from octavo.server.http.errors import ApiError
from octavo.server.identity import Identities
from server.held_engine import HeldBench
from server.process import Server
from server.scripted import scripted_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
IDS = {"include_event_ids": True}
USAGE = IDS | {"include_usage": True, "continuous_usage_stats": True}
HELLO = [{"role": "user", "content": "a question that is longer than a block of the cache"}]
FORCED = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}

KINDS: dict[str, tuple[str, dict[str, Json]]] = {
    "text": (COMPLETIONS, {"prompt": "ab", "seed": 5}),
    "random bytes": (COMPLETIONS, {"prompt": "ab", "temperature": 2.0, "top_k": 0}),
    "chat": (CHAT, {"messages": HELLO, "stream_options": USAGE}),
    "logprobs": (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
    "choices": (CHAT, {"messages": HELLO, "n": 3, "stream_options": USAGE}),
    "echo": (
        COMPLETIONS,
        {"prompt": ["ab", "ab", "cde"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 6},
    ),
    "stop string": (COMPLETIONS, {"prompt": "ab", "temperature": 2.0, "stop": ["zzzz", "e", "é"], "n": 2}),
    "grammar": (CHAT, {"messages": HELLO, "structured_outputs": {"json": FORCED}, "max_tokens": 40}),
    "only the prompt": (COMPLETIONS, {"prompt": "ab", "echo": True, "max_tokens": 0}),
}


@pytest.fixture(scope="module")
def other(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another server of the same model, with other limits and a cache of its own."""
    flags = (
        "--kv-memory",
        "4MiB",
        "--served-model-name",
        "tiny",
        "--max-step-tokens",
        "16",
        "--max-running",
        "4",
    )
    running = Server(tmp_path_factory.mktemp("other"), tiny_checkpoint, *flags)
    try:
        yield running.wait_until_ready()
    finally:
        running.stop()


def events_of(content: bytes) -> list[bytes]:
    assert content.endswith(b"\n\n")
    return [event + b"\n\n" for event in content.split(b"\n\n")[:-1]]


def id_of(event: bytes) -> str:
    line = event.partition(b"\n")[0]
    assert line.startswith(b"id: ")
    return line.removeprefix(b"id: ").decode()


def by_choice(events: list[bytes]) -> dict[int | None, list[Json]]:
    """Return the events without ids by choice: the order of events of different choices may differ."""
    sorted_events: dict[int | None, list[Json]] = {}
    for event in events:
        line = event.strip().rpartition(b"\n")[2].removeprefix(b"data: ")
        content = None if line == b"[DONE]" else json.loads(line)
        index = content["choices"][0]["index"] if content and content["choices"] else None
        if content and index is not None:
            content.pop("usage", None)  # counts the tokens of all choices so far
        sorted_events.setdefault(index, []).append(content)
    return sorted_events


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_continues_after_any_event(kind: str, server: Server, other: Server) -> None:
    path, fields = KINDS[kind]
    body = {"max_tokens": 12, "ignore_eos": kind != "grammar", "stream": True, "stream_options": IDS} | fields
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    *events, done = events_of(response.content)
    assert done == b"data: [DONE]\n\n"
    has_one_choice = fields.get("n", 1) == 1
    assert len(events) > 3 or kind == "only the prompt"
    for number, event in enumerate(events, start=1):
        again = body | {"resume_from": id_of(event)}
        rest = (other if number % 2 else server).post(path, again).content
        if has_one_choice:
            assert rest == b"".join([*events[number:], done])
        else:
            assert by_choice([*events[:number], *events_of(rest)]) == by_choice([*events, done])


def test_a_seed_that_the_server_drew_is_different_for_each_prompt(server: Server) -> None:
    body = {"prompt": ["ab"] * 4, "max_tokens": 16, "temperature": 2.0, "ignore_eos": True, "octavo": True}
    response = server.post(COMPLETIONS, body).json()
    assert len({choice["text"] for choice in response["choices"]}) == 4
    seed = response["octavo"]["requests"][2]["seed"]
    alone = server.post(COMPLETIONS, body | {"prompt": "ab", "seed": seed}).json()
    assert alone["choices"][0]["text"] == response["choices"][2]["text"]


def test_openais_client_reads_events_with_ids(server: Server) -> None:
    messages: Json = [{"role": "user", "content": "x"}]
    texts = []
    for options in ({}, IDS):
        extra = {"stream_options": options}
        stream = server.client().chat.completions.create(
            model="tiny", messages=messages, max_tokens=9, seed=3, stream=True, extra_body=extra
        )
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in stream))
    assert texts[0] == texts[1] != ""


@pytest.mark.assets
def test_reasoning_and_tool_calls_continue_after_any_event(assets: Callable[[str], Path]) -> None:
    text = (
        "<think>\nhm, ünïcode\n</think>\n\nLet me see.\n\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "ß"}}\n</tool_call>'
    )
    parameters = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": parameters}}]
    body = {"messages": HELLO, "tools": tools, "stream": True, "stream_options": USAGE}
    url = "/chat/completions"
    with scripted_server(assets("tokenizer-qwen3")) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)

        def post(body: Json) -> bytes:
            server.says(text)
            return client.post(url, body=body, cast_to=bytes, options={"headers": {"accept": "*/*"}})

        events = events_of(post(body))
        assert b"reasoning" in b"".join(events)
        assert b"tool_calls" in events[-3]
        for number, event in enumerate(events[:-1], start=1):
            assert post(body | {"resume_from": id_of(event)}) == b"".join(events[number:])


# -- on an engine whose tokens the test sends ---------------------------------------------------------------

HELD: dict[str, Json] = {"prompt": "ab", "max_tokens": 8, "stream": True, "stream_options": IDS}


def run_held(model: TextModel, test: Callable[[HeldBench], Json], key_path: Path | None = None) -> None:
    async def main() -> None:
        bench = HeldBench(model, key_path)
        await test(bench)
        await bench.until(lambda: bench.is_clean)
        bench.state.close()

    asyncio.run(main())


async def told(bench: HeldBench, pieces: list[str], body: Json = HELD, **headers: str) -> list[bytes]:
    """Return the events of a stream whose engine returns these pieces, one per step."""
    asked = bench.ask(body, **headers)
    await bench.until_asked(len(bench.channel.requests) + 1)
    for piece in pieces:
        bench.say(piece, finish=None if piece is not pieces[-1] else FinishReason.LENGTH)
    return events_of((await asked.done()).content)


def text_of(events: list[bytes]) -> str:
    return "".join(choices[0]["text"] for choices in (one["choices"] for one in by_choice(events).get(0, [])))


def test_tokens_may_be_grouped_differently(tiny_model: TextModel) -> None:
    async def test(bench: HeldBench) -> None:
        first = await told(bench, ["abc", "d", "ef", "gh"])
        for number, event in enumerate(first[:-1], start=1):
            for pieces in (["abcdefgh"], list("abcdefgh"), ["ab", "cdefg", "h"]):
                rest = await told(bench, pieces, HELD | {"resume_from": id_of(event)})
                assert text_of([*first[:number], *rest]) == "abcdefgh"

    run_held(tiny_model, test)


def test_an_id_is_valid_only_for_its_request_model_and_api_key(tiny_model: TextModel, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice sk-alice-1\nalice sk-alice-2\nbob sk-bob-0001\n")

    async def test(bench: HeldBench) -> None:
        alice = "Bearer sk-alice-1"
        events = await told(bench, ["ab", "c"], authorization=alice)
        given = id_of(events[0])
        again = HELD | {"resume_from": given}

        async def rejected(body: Json, key: str = alice, **headers: str) -> tuple[int, Json]:
            asked = await bench.ask(body, authorization=key, **headers).done()
            return asked.status, asked.error["code"]

        forged = [given[:-1], given + "A", "BB" + given[2:], given[:-8] + "AAAAAAAA", "x", "é", "A" * 80]
        for body in (HELD | {"resume_from": one} for one in forged):
            assert await rejected(body) == (400, "invalid_event_id")
        for key in ("sk-alice-2", "sk-bob-0001"):
            assert await rejected(again, "Bearer " + key) == (400, "invalid_event_id")
        changes: list[dict[str, Json]] = [{"prompt": "ac"}, {"seed": 1}, {"temperature": 0.5}, {"echo": True}]
        for change in changes:
            assert await rejected(again | change) == (409, "resume_conflict")
        without_ids: list[dict[str, Json]] = [{"stream": False}, {"stream_options": None}]
        for change in without_ids:
            assert (await rejected(again | change))[0] == 400
        for text in ("x", given + "A" * MAX_ID):
            assert await rejected(HELD, last_event_id=text) == (400, "invalid_event_id")
        deep: Json = "leaf"
        for _ in range(300):
            deep = [deep]
        nested = {
            "messages": HELLO,
            "stream": True,
            "stream_options": IDS,
            "chat_template_kwargs": {"a": deep},
        }
        asked = await bench.ask(nested, CHAT, authorization=alice).done()
        assert (asked.status, "nested too deeply" in asked.error["message"]) == (400, True)
        bench.state.model = replace(tiny_model, name="other")
        assert await rejected(again) == (409, "resume_conflict")
        bench.state.model = tiny_model
        assert len(bench.channel.requests) == 1
        for body, headers in (
            (again | {"timeout": 60.0, "priority": 1}, {}),
            (HELD, {"last_event_id": given, "idempotency_key": "not needed"}),
        ):
            assert await told(bench, ["abc"], body, authorization=alice, **headers) == events[1:]
        many = await bench.ask(HELD | {"prompt": ["a"] * (MAX_CHOICES + 1)}, authorization=alice).done()
        assert (many.status, many.error["param"]) == (400, "stream_options.include_event_ids")

    run_held(tiny_model, test, path)


def test_openais_client_reads_pings_between_events_with_ids(
    tiny_model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an id, it takes an empty line for an event."""
    monkeypatch.setattr(answer, "PING_SECONDS", 0.01)

    async def test(bench: HeldBench) -> None:
        asked = bench.ask(HELD)
        await bench.until_asked(1)
        bench.say("a")
        await bench.until(lambda: asked.content.endswith(b": ping\n"))
        bench.say("b", finish=FinishReason.LENGTH)
        content = (await asked.done()).content
        decoder = openai.OpenAI(api_key="none")._make_sse_decoder()
        data = [event.data for event in decoder.iter_bytes(iter([content]))]
        assert data.pop() == "[DONE]"
        assert [json.loads(one)["choices"][0]["text"] for one in data] == ["a", "b"]

    run_held(tiny_model, test)


def test_ids_are_short_and_can_be_parsed() -> None:
    for num_choices, max_length in ((1, 90), (MAX_CHOICES, 200)):
        origin = StreamOrigin(b"k" * 32, Identities().new(), b"body tag")
        ids = EventIds(origin, b"answered", num_choices)
        ids._encoded = [ChoicePosition(8191, True, 8191).encoded()] * num_choices
        text = ids.mark_end(b"event").decode().partition("\n")[0].removeprefix("id: ")
        assert len(text) <= max_length
        resumed = resumed_stream(text, b"k" * 32, b"body tag", param="resume_from").resumed
        assert resumed is not None
        assert resumed.choices == (ChoicePosition(8191, True, 8191),) * num_choices
        assert resumed.identity == origin.identity
        with pytest.raises(ApiError):
            resumed_stream(text, b"j" * 32, b"body tag", param="resume_from")


KEY = b"k" * 32


def delta(num_tokens: int, finish: str | None = None) -> StreamDelta:
    return StreamDelta(request_id="0", choice=0, text="", token_ids=(1,) * num_tokens, finish_reason=finish)


def after(event: bytes) -> StreamOrigin:
    """Return the origin of the stream that continues after this event."""
    return resumed_stream(id_of(event), KEY, b"body tag", param="resume_from")


def test_a_stream_of_several_choices_can_be_continued_more_than_once() -> None:
    """The id of an event counts what the client has of the other choices, not what was computed again."""
    first = EventIds(StreamOrigin(KEY, Identities().new(), b"body tag"), b"answered", 3)
    first.mark(0, delta(5), b"a")
    first.mark(1, delta(2), b"b")
    origin = after(first.mark(2, delta(3, "stop"), b"c"))
    again = EventIds(origin, b"answered", 3)
    assert again.mark(0, delta(1), b"a") == b""
    event = again.mark(1, delta(4), b"b")
    expected = ChoicePosition(5), ChoicePosition(4), ChoicePosition(3, True)
    assert after(event).resumed == replace(position_of(origin), choices=expected)
    third = EventIds(after(event), b"answered", 3)
    assert third.mark(0, delta(5), b"a") == third.mark(1, delta(4), b"b") == b""
    assert third.mark(2, delta(3, "stop"), b"c") == b""
    assert third.mark(0, delta(1), b"a") != b""


def position_of(origin: StreamOrigin) -> StreamPosition:
    assert origin.resumed is not None
    return origin.resumed


@pytest.mark.parametrize("num_bytes", [6, 200])
def test_forged_numbers_in_ids_are_bounded(num_bytes: int) -> None:
    ids = EventIds(StreamOrigin(KEY, Identities().new(), b"body tag"), b"answered", 1)
    ids._encoded = [b"\xff" * (num_bytes - 1) + b"\1\0"]
    with pytest.raises(ApiError, match="is not the id of an event"):
        after(ids.mark_end(b"event"))


def test_an_id_with_another_number_of_choices_is_rejected() -> None:
    ids = EventIds(StreamOrigin(KEY, Identities().new(), b"body tag"), answer_tag("", "", []), 1)
    with pytest.raises(ApiError, match="is not the id of an event"):
        make_event_ids(after(ids.mark_end(b"event")), "", "", [])
