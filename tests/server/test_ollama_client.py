"""Ollama's own client, on a real server and on one whose model says a scripted text."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import ollama
import pytest
from pydantic import BaseModel

from data.json_types import Json
from server.process import Server
from server.scripted import ScriptedServer, scripted_server

pytestmark = pytest.mark.xdist_group("server")

HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"seed": 7, "temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def client(server: Server) -> ollama.Client:
    return ollama.Client(server.url)


@pytest.fixture(scope="module")
def coder(assets: Callable[[str], Path]) -> Iterator[ScriptedServer]:
    with scripted_server(assets("tokenizer-qwen2.5")) as running:
        yield running


def test_chat(server: Server, client: ollama.Client) -> None:
    whole = client.chat("tiny", HELLO, options=OPTIONS)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 12)
    assert whole.message.content
    parts = list(client.chat("tiny:latest", HELLO, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count
    assert parts[-1].eval_duration

    async def at_once() -> str:
        asked = await ollama.AsyncClient(server.url).chat("tiny", HELLO, options=OPTIONS, stream=True)
        return "".join([part.message.content or "" async for part in asked])

    assert asyncio.run(at_once()) == whole.message.content


def test_generate(client: ollama.Client) -> None:
    whole = client.generate("tiny", "hello", options=OPTIONS, keep_alive="5m")
    assert whole.response
    parts = list(client.generate("tiny", "hello", options=OPTIONS, stream=True))
    assert "".join(part.response or "" for part in parts) == whole.response
    assert client.generate("tiny", "hello", raw=True, options=OPTIONS).response != whole.response
    assert client.generate("tiny").done_reason == "load"
    scored = client.generate("tiny", "hello", options=OPTIONS, logprobs=True, top_logprobs=2)
    assert scored.logprobs is not None
    assert [len(entry.top_logprobs or ()) for entry in scored.logprobs] == [2] * 12


def test_structured_answers(client: ollama.Client) -> None:
    class Answer(BaseModel, extra="forbid"):
        is_right: bool

    answer = client.chat(
        "tiny", HELLO, format=Answer.model_json_schema(), options=OPTIONS | {"num_predict": 99}
    )
    assert isinstance(Answer.model_validate_json(answer.message.content or "").is_right, bool)
    assert (client.generate("tiny", "x", format="json", options=OPTIONS).response or "").startswith("{")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
      a: the first number
      b: the second number
    """
    return a + b


@pytest.mark.assets
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_a_tool(coder: ScriptedServer, stream: bool) -> None:
    """The client describes the function, calls it and sends its result."""
    client = ollama.Client(coder.url.removesuffix("/v1"))
    messages: list[Json] = [{"role": "user", "content": "What is 2 + 3?"}]
    coder.says('<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>', "It is 5.")
    if stream:
        parts = list(client.chat("scripted", messages, tools=[add], stream=True))
        (called,) = [part.message for part in parts if part.message.tool_calls]
    else:
        called = client.chat("scripted", messages, tools=[add]).message
    assert '"name": "add"' in coder.last_prompt
    assert "the second number" in coder.last_prompt
    (call,) = called.tool_calls or []
    assert call.function.arguments == {"a": 2, "b": 3}
    messages += [called, {"role": "tool", "tool_name": "add", "content": str(add(**call.function.arguments))}]
    assert client.chat("scripted", messages, tools=[add]).message.content == "It is 5."
    assert "<tool_response>\n5\n</tool_response>" in coder.last_prompt


@pytest.mark.assets
def test_a_suffix(coder: ScriptedServer) -> None:
    client = ollama.Client(coder.url.removesuffix("/v1"))
    coder.says("a + b")
    assert client.generate("scripted", "return ", "\n").response == "a + b"
    assert "insert" in (client.show("scripted").capabilities or ())


def test_the_model(client: ollama.Client) -> None:
    (listed,) = client.list().models
    (running,) = client.ps().models
    assert listed.model == running.model == "tiny"
    assert listed.modified_at is not None
    assert running.expires_at is not None
    assert running.context_length == 512
    shown = client.show("tiny")
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 512
    assert shown.details is not None


def test_errors(client: ollama.Client) -> None:
    calls: list[tuple[int, str, Callable[[], object]]] = [
        (404, "no model 'other'", lambda: client.chat("other", HELLO)),
        (404, "no model 'other'", lambda: client.show("other")),
        (
            400,
            "maximum context length is",
            lambda: client.chat("tiny", [{"role": "user", "content": "x" * 600}]),
        ),
        (
            400,
            "temperature must be",
            lambda: list(client.generate("tiny", "x", options={"temperature": -1}, stream=True)),
        ),
        (404, "octavo serve MODEL", lambda: client.pull("tiny")),
        (404, "octavo serve MODEL", lambda: client.delete("tiny")),
        (404, "generates text", lambda: client.embed("tiny", "x")),
    ]
    for status, text, call in calls:
        with pytest.raises(ollama.ResponseError, match=text) as caught:
            call()
        assert caught.value.status_code == status
