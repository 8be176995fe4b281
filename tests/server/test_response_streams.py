"""The events of OpenAI's Responses API: any division of an answer, pings and failures."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.json_types import Json, JsonObject
from octavo.fairness.tenant import ONLY_TENANT
from octavo.frontend.chat import compose
from octavo.frontend.intake import Intake, RequestLimits
from octavo.frontend.output import RequestText, StreamDelta
from octavo.frontend.text_model import TextModel
from octavo.protocol import FinishReason, SamplingParams, Timings, TokenLogprob, TokenOutput
from octavo.server import answer as server_answer
from octavo.server.http.errors import ApiError
from octavo.server.http.sse import encode
from octavo.server.openai.responses.answer import ResponsesAnswer
from octavo.server.openai.responses.asked import AskedResponse
from octavo.server.openai.responses.endpoint import chat_task
from octavo.server.openai.responses.items import input_items
from octavo.server.openai.responses.schema import ResponsesRequest
from octavo.server.openai.responses.tools import custom_arguments, input_of, tool_box
from octavo.server.stored_responses import MemoryResponses
from server.held_engine import HeldBench
from server.response_events import (
    EVENT,
    RESPONSES,
    TOOLS,
    WHOLE,
    call_text,
    check_known,
    check_stream,
    events_in,
)
from server.scripted import served_tokenizer

pytestmark = pytest.mark.assets


@pytest.fixture(scope="module")
def qwen3(assets: Callable[[str], Path]) -> TextModel:
    return served_tokenizer(assets("tokenizer-qwen3"))


# -- the writer, on any division of an answer --------------------------------------------------------------


class Played:
    """A generation whose tokens are given: the part of it that a writer uses."""

    def __init__(self, model: TextModel, asked: AskedResponse) -> None:
        task = compose(chat_task(asked, SamplingParams(seed=1)), model)
        intake = Intake(model.tokenizer, RequestLimits(1 << 20, 1 << 16))
        self.request = intake.prepare("r", task, now=0.0)
        self.model = model
        self.prepared = [self.request]
        self.results: dict[int, object] = {}
        self.state = SimpleNamespace(model=model, responses=MemoryResponses(1 << 20))
        self.context = SimpleNamespace(response_id="resp_00", created=1, model="m", tenant=ONLY_TENANT)

    def deltas(self, text: str, sizes: list[int], *, is_cut: bool) -> list[StreamDelta]:
        """Return the deltas of an answer whose steps have these numbers of tokens, in turn."""
        ids = self.model.tokenizer.encode(text, add_special_tokens=False)
        ids += [] if is_cut else [self.model.tokenizer.eos_ids[0]]
        reader, start = RequestText(self.request, self.model.tokenizer), 0
        deltas: list[StreamDelta] = []
        while start < len(ids) or not start:
            step = tuple(ids[start : start + sizes[len(deltas) % len(sizes)]])
            start += len(step) or 1
            is_last = start >= len(ids)
            finish = FinishReason.LENGTH if is_cut else FinishReason.STOP
            output = TokenOutput(
                request_id="r",
                choice=0,
                token_ids=step,
                logprobs=tuple(TokenLogprob(one, -0.5, ((one, -0.5), (1, -2.0))) for one in step),
                finish=finish if is_last else None,
                timings=Timings(0.0, 0.0, 0.0) if is_last else None,
            )
            done = reader.process(output)
            deltas += [] if done.delta is None else [done.delta]
            if done.finished is not None:
                self.results[0] = done.finished
        return deltas


def asked_for(**body: Json) -> AskedResponse:
    request = ResponsesRequest.model_validate({"input": "hi"} | body)
    return AskedResponse(request, tool_box(request), [], input_items(request.input), b"")


# Its input is text that follows the call, up to the end of the answer.
WRITE: JsonObject = {
    "type": "custom",
    "name": "write",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)*/"},
}
words = st.text(st.sampled_from('ab {}"\\\n<>é😀'), max_size=12)
pieces = st.lists(
    st.one_of(
        words,
        st.builds(
            call_text,
            st.sampled_from(["add", "patch", "maths__sub", "maths__patch", "unknown"]),
            st.one_of(words.map(custom_arguments), st.dictionaries(words, words, max_size=2)),
        ),
    ),
    max_size=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    thought=st.none() | words,
    said=pieces,
    written=st.none() | words,
    end=st.none() | st.integers(0, 400),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    has_tools=st.booleans(),
)
def test_a_stream_adds_up_to_the_body(qwen3: TextModel, **drawn: Any) -> None:
    """Any answer, cut off anywhere and divided in any way, gives legal events that add up to the body."""
    thought, end, is_cut = drawn["thought"], drawn["end"], drawn["end"] is not None
    text = ("" if thought is None else f"<think>\n{thought}\n</think>\n\n") + "".join(drawn["said"])
    if drawn["written"] is not None:
        text += f'<tool_call>\n{{"name": "write"}}\n{drawn["written"]}'
    asked = asked_for(tools=[*TOOLS, WRITE]) if drawn["has_tools"] else asked_for(top_logprobs=2)
    generation = Played(qwen3, asked)
    deltas = generation.deltas(text[:end], drawn["sizes"], is_cut=is_cut)
    writer = ResponsesAnswer(asked, generation)  # type: ignore[arg-type]
    stream = [writer.framing.opening()]
    for delta in deltas:
        stream += [event for _, event in writer.encode_delta(delta)]
        stream.append(writer.framing.ping())
    stream.append(writer.encode_end())
    streamed = check_stream(events_in(b"".join(stream)))
    whole = json.loads(encode(ResponsesAnswer(asked, generation).full_body()))  # type: ignore[arg-type]
    assert streamed == whole
    assert whole["status"] == ("incomplete" if is_cut else "completed")
    check_known(None, whole, WHOLE)
    (result,) = generation.results.values()
    texts = [
        part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]
    ]
    assert "".join(texts) == result.text  # type: ignore[attr-defined]


def test_a_failure_ends_the_stream(qwen3: TextModel) -> None:
    asked = asked_for()
    generation = Played(qwen3, asked)
    deltas = generation.deltas("a b c d", [1], is_cut=True)
    writer = ResponsesAnswer(asked, generation)  # type: ignore[arg-type]
    stream = writer.framing.opening() + writer.encode_delta(deltas[0])[0][1]
    stream += writer.framing.failure(ApiError(503, "the engine died"))
    *_, last = events_in(stream)
    check_known(None, last, EVENT)
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the engine died"}


@given(st.text(), st.integers(0))
def test_the_input_of_a_custom_tool_that_was_cut_off_is_a_prefix(text: str, end: int) -> None:
    written = json.dumps(custom_arguments(text))
    assert input_of(written) == text
    begun = written[: end % (len(written) + 1)]
    shown = input_of(begun)
    assert text.startswith(shown) or shown == begun


# -- pings and failures over the wire ------------------------------------------------------------------------


@pytest.mark.parametrize("has_key", [False, True])
def test_a_silent_stream_repeats_that_it_is_in_progress(
    tiny_model: TextModel, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    """A stream begins before the first token. A repeated request gets the events without the pings."""
    monkeypatch.setattr(server_answer, "PING_SECONDS", 0.02)

    async def main() -> None:
        bench = HeldBench(tiny_model)
        body: JsonObject = {"input": "hi", "stream": True, "max_output_tokens": 100}
        headers = {"idempotency_key": "k"} if has_key else {}
        first = bench.ask(body, RESPONSES, **headers)
        await bench.until(lambda: first.content.count(b"event: response.in_progress") >= 4)
        assert first.content.startswith(b"event: response.created\n")
        bench.say("x")
        await bench.until(lambda: b"output_text.delta" in first.content)
        num_before = len(first.writes)
        await bench.until(lambda: len(first.writes) > num_before)
        bench.say("y", finish=FinishReason.LENGTH)
        await first.done()
        final = check_stream(events_in(first.content))
        assert final["status"] == "incomplete"
        assert final["output"][0]["content"][0]["text"] == "xy"
        if has_key:
            second = await bench.ask(body, RESPONSES, **headers).done()
            assert check_stream(events_in(second.content)) == final
            assert second.content.count(b"event: response.in_progress") == 1
        await bench.until(lambda: bench.is_clean)
        bench.state.close()

    asyncio.run(main())


def test_an_engine_error_in_mid_stream_is_a_failed_response(tiny_model: TextModel) -> None:
    async def main() -> None:
        bench = HeldBench(tiny_model)
        asked = bench.ask({"input": "hi", "stream": True}, RESPONSES)
        await bench.until_asked(1)
        bench.say("x")
        bench.say("y", finish=FinishReason.ABORT)
        await asked.done()
        *_, last = events_in(asked.content)
        check_known(None, last, EVENT)
        assert last["type"] == "response.failed"
        made = last["response"]["id"]
        assert (await bench.ask(None, f"{RESPONSES}/{made}").done()).status == 404
        await bench.until(lambda: bench.is_clean)
        bench.state.close()

    asyncio.run(main())
