"""The interfaces for a conversation, and conversion of their answers to one comparable value."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import httpx
import msgspec

from conversations.conversations import Conversation
from data.json_types import Json, JsonObject
from octavo import LLM, SamplingParams
from octavo.dialect.pieces import CallStart
from octavo.frontend.output import RequestOutput, StreamDelta
from octavo.protocol import TokenLogprob
from octavo.text.tokenizer import Tokenizer

NUM_TOP = 3


@dataclass(frozen=True)
class Score:
    """A token and its log-probability. The HTTP API has text and bytes here, but no ids."""

    token: str
    token_bytes: tuple[int, ...]
    logprob: float
    top: tuple["Score", ...] = ()


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Choice:
    """Ids and logprobs are None if the interface does not return them."""

    text: str
    reasoning: str | None
    calls: tuple[Call, ...]
    finish_reason: str
    token_ids: tuple[int, ...] | None
    logprobs: tuple[Score, ...] | None


@dataclass(frozen=True)
class Answer:
    prompt_ids: tuple[int, ...] | None  # None: not returned by the interface
    choices: tuple[Choice, ...]


Ask = Callable[[Conversation], Awaitable[Answer]]


@dataclass
class Growing:
    """Assembles one choice of a stream."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Score] = field(default_factory=list)

    def start_call(self, index: int, call: Call) -> None:
        assert index == len(self.calls), "calls start in order"
        self.calls.append(call)

    def add_arguments(self, index: int, text: str) -> None:
        call = self.calls[index]
        self.calls[index] = replace(call, arguments=call.arguments + text)

    def end(self, reason: str | None) -> None:
        assert self.finish_reason is None, "nothing follows the end of a choice"
        self.finish_reason = reason

    def whole(self) -> Choice:
        assert self.finish_reason is not None, "the stream ended early"
        return Choice(
            self.text,
            self.reasoning or None,
            tuple(self.calls),
            self.finish_reason,
            tuple(self.token_ids),
            tuple(self.logprobs),
        )


# -- LLM ---------------------------------------------------------------------------------------------------


class AskLLM:
    """`chat` and `stream_chat` block, so each conversation gets a thread."""

    def __init__(self, llm: LLM, threads: ThreadPoolExecutor) -> None:
        self._llm = llm
        self._threads = threads

    async def chat(self, conversation: Conversation) -> Answer:
        messages, params, chat = self._asked(conversation)
        (output,) = await self._in_thread(lambda: self._llm.chat(messages, params, progress=False, **chat))
        return self._of_output(output)

    async def achat(self, conversation: Conversation) -> Answer:
        messages, params, chat = self._asked(conversation)
        return self._of_output(await self._llm.achat(messages, params, **chat))

    async def stream_chat(self, conversation: Conversation) -> Answer:
        messages, params, chat = self._asked(conversation)
        deltas = await self._in_thread(lambda: list(self._llm.stream_chat(messages, params, **chat)))
        return self._of_deltas(deltas, params.n)

    async def astream_chat(self, conversation: Conversation) -> Answer:
        messages, params, chat = self._asked(conversation)
        deltas = [delta async for delta in self._llm.astream_chat(messages, params, **chat)]
        return self._of_deltas(deltas, params.n)

    def _asked(self, one: Conversation) -> tuple[Sequence[JsonObject], SamplingParams, JsonObject]:
        params = msgspec.structs.replace(
            self._llm.default_params,
            n=len(one.scripts),
            seed=one.seed,
            stop=one.stop,
            include_stop=one.include_stop,
            max_tokens=one.max_tokens,
            temperature=one.temperature,
            logprobs=NUM_TOP,
        )
        chat = {
            "tools": one.tools or None,
            "tool_choice": one.tool_choice,
            "parallel_tool_calls": one.parallel_tool_calls,
            "schema": one.schema,
            "template": {**one.template, "continue_final_message": one.continues},
        }
        return one.messages, params, chat

    async def _in_thread(self, function: Callable[[], Json]) -> Json:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def _of_output(self, output: RequestOutput) -> Answer:
        choices = [
            Choice(
                choice.text,
                choice.reasoning,
                tuple(Call(call.id, call.name, call.arguments) for call in choice.calls),
                choice.finish_reason,
                choice.token_ids,
                scores(choice.logprobs or (), self._llm.tokenizer),
            )
            for choice in output.choices
        ]
        return Answer(output.prompt_ids, tuple(choices))

    def _of_deltas(self, deltas: Iterable[StreamDelta], n: int) -> Answer:
        growing = [Growing() for _ in range(n)]
        for delta in deltas:
            choice = growing[delta.choice]
            choice.end(delta.finish_reason)
            choice.text += delta.text
            choice.reasoning += delta.reasoning
            for piece in delta.calls:
                if isinstance(piece, CallStart):
                    choice.start_call(piece.index, Call(piece.id, piece.name, ""))
                else:
                    choice.add_arguments(piece.index, piece.text)
            choice.token_ids += delta.token_ids
            choice.logprobs += scores(delta.logprobs, self._llm.tokenizer)
        return Answer(None, tuple(choice.whole() for choice in growing))


def scores(scored: Iterable[TokenLogprob], tokenizer: Tokenizer) -> tuple[Score, ...]:
    def score(token_id: int, logprob: float, top: tuple[Score, ...] = ()) -> Score:
        token_bytes = tuple(tokenizer.token_bytes(token_id))
        return Score(tokenizer.token_text(token_id), token_bytes, logprob, top)

    return tuple(
        score(one.token_id, one.logprob, tuple(score(token_id, logprob) for token_id, logprob in one.top))
        for one in scored
    )


# -- the server --------------------------------------------------------------------------------------------


class AskServer:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def whole(self, conversation: Conversation) -> Answer:
        response = await self._client.post("/v1/chat/completions", json=_body(conversation))
        assert response.status_code == 200, (conversation.name, response.text)
        answer = response.json()
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return Answer(tuple(answer["prompt_token_ids"]), tuple(map(_wire_choice, choices)))

    async def streamed(self, conversation: Conversation) -> Answer:
        prompt_ids = None
        growing = [Growing() for _ in conversation.scripts]
        async for chunk in self._chunks(_body(conversation) | {"stream": True}):
            prompt_ids = chunk.get("prompt_token_ids", prompt_ids)
            _add_chunk(growing, chunk)
            for choice in chunk["choices"]:
                growing[choice["index"]].token_ids += choice["token_ids"]
                growing[choice["index"]].logprobs += map(_wire_score, choice["logprobs"]["content"])
        assert prompt_ids is not None
        return Answer(tuple(prompt_ids), tuple(choice.whole() for choice in growing))

    async def streamed_without_ids(self, conversation: Conversation) -> Answer:
        """Request what most clients request: the server then uses a faster code path."""
        body = _body(conversation) | {"stream": True}
        for name in ("logprobs", "top_logprobs", "return_token_ids"):
            del body[name]
        growing = [Growing() for _ in conversation.scripts]
        async for chunk in self._chunks(body):
            _add_chunk(growing, chunk)
        choices = [replace(choice.whole(), token_ids=None, logprobs=None) for choice in growing]
        return Answer(None, tuple(choices))

    async def _chunks(self, body: JsonObject) -> AsyncIterator[JsonObject]:
        async with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            lines = [line async for line in response.aiter_lines() if line and not line.startswith(":")]
        assert lines.pop() == "data: [DONE]"
        for line in lines:
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            yield chunk


def _body(one: Conversation) -> JsonObject:
    named = one.tool_choice not in ("auto", "none", "required")
    body: JsonObject = {
        "messages": one.messages,
        "n": len(one.scripts),
        "seed": one.seed,
        "stop": one.stop,
        "include_stop_str_in_output": one.include_stop,
        "max_tokens": one.max_tokens,
        "temperature": one.temperature,
        "logprobs": True,
        "top_logprobs": NUM_TOP,
        "return_token_ids": True,
        "chat_template_kwargs": one.template,
        "continue_final_message": one.continues,
        "add_generation_prompt": not one.continues,
    }
    if one.tools:
        choice = {"type": "function", "function": {"name": one.tool_choice}} if named else one.tool_choice
        body |= {
            "tools": one.tools,
            "tool_choice": choice,
            "parallel_tool_calls": one.parallel_tool_calls,
        }
    if one.schema is not None:
        wanted = {"name": "answer", "schema": one.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return body


def _wire_choice(choice: JsonObject) -> Choice:
    message = choice["message"]
    calls = tuple(
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    )
    assert message.get("reasoning") == message.get("reasoning_content")
    return Choice(
        message["content"] or "",
        message.get("reasoning"),
        calls,
        _finish_reason(choice["finish_reason"], bool(calls)),
        tuple(choice["token_ids"]),
        tuple(map(_wire_score, choice["logprobs"]["content"])),
    )


def _add_chunk(growing: Sequence[Growing], chunk: JsonObject) -> None:
    for one in chunk["choices"]:
        choice, delta = growing[one["index"]], one["delta"]
        assert delta.get("reasoning") == delta.get("reasoning_content")
        choice.text += delta.get("content", "")
        choice.reasoning += delta.get("reasoning", "")
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                choice.start_call(call["index"], Call(call["id"], function["name"], function["arguments"]))
            else:
                choice.add_arguments(call["index"], function["arguments"])
        reason = one["finish_reason"]
        choice.end(None if reason is None else _finish_reason(reason, bool(choice.calls)))


def _finish_reason(reason: str, has_calls: bool) -> str:
    """In the HTTP API, an answer that stops with calls has a separate finish reason."""
    assert (reason == "tool_calls") == (has_calls and reason != "length"), (reason, has_calls)
    return "stop" if reason == "tool_calls" else reason


def _wire_score(entry: JsonObject) -> Score:
    top = tuple(map(_wire_score, entry.get("top_logprobs", ())))
    return Score(entry["token"], tuple(entry["bytes"]), entry["logprob"], top)
