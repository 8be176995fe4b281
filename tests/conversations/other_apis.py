"""The same conversations through Anthropic's messages and OpenAI's responses.

Both have one answer per request: of a conversation with several choices they give the first one. Neither can
keep a stop string in the answer, so the expected text is compared without it.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import httpx
from pydantic_core import from_json

from conversations.conversations import Conversation
from conversations.ways import NUM_TOP, Answer, Call, Choice, Growing, scores
from data.json_types import Json, JsonObject
from octavo.protocol import TokenLogprob
from octavo.text.tokenizer import Tokenizer

CALL_PREFIX = "toolu_"
END_REASONS = {
    "end_turn": "stop",
    "tool_use": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


def first_choice(conversation: Conversation, answer: Answer) -> Answer:
    """Return what these APIs give of an answer."""
    choice = answer.choices[0]
    if conversation.include_stop:
        for stop in conversation.stop:
            choice = replace(choice, text=choice.text.removesuffix(stop))
    return replace(answer, choices=(choice,))


@dataclass(frozen=True)
class Client:
    http: httpx.AsyncClient
    tokenizer: Tokenizer

    async def whole(self, path: str, body: JsonObject) -> JsonObject:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: JsonObject = response.json()
        return answer

    async def events(self, path: str, body: JsonObject) -> AsyncIterator[JsonObject]:
        async with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def scored(self, growing: Growing, explained: JsonObject) -> Answer:
        """Return the answer with the token ids and logprobs of the `octavo` object."""
        (request,) = explained["requests"]
        (choice,) = request["choices"]
        growing.token_ids += choice["token_ids"]
        found = [
            TokenLogprob(one["token_id"], one["logprob"], tuple(map(tuple, one["top"])))
            for one in choice["logprobs"]
        ]
        growing.logprobs += scores(found, self.tokenizer)
        return Answer(tuple(request["prompt_token_ids"]), (growing.whole(),))


def _extensions(one: Conversation) -> JsonObject:
    return {
        "temperature": one.temperature,
        "seed": one.seed,
        "top_logprobs": NUM_TOP,
        "octavo": {"token_ids": True},
    }


# -- messages ----------------------------------------------------------------------------------------------


class AskMessages:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def whole(self, conversation: Conversation) -> Answer:
        answer = await self._client.whole("/v1/messages", _messages_body(conversation))
        growing = Growing()
        for block in answer["content"]:
            match block["type"]:
                case "thinking":
                    growing.reasoning += block["thinking"]
                case "text":
                    growing.text += block["text"]
                case "tool_use":
                    call_id = block["id"].removeprefix(CALL_PREFIX)
                    growing.start_call(
                        len(growing.calls), Call(call_id, block["name"], json.dumps(block["input"]))
                    )
        growing.end(END_REASONS[answer["stop_reason"]])
        return self._client.scored(growing, answer["octavo"])

    async def streamed(self, conversation: Conversation) -> Answer:
        growing, explained = Growing(), None
        async for event in self._client.events("/v1/messages", _messages_body(conversation)):
            match event:
                case {"type": "content_block_start", "content_block": {"type": "tool_use"} as block}:
                    call_id = block["id"].removeprefix(CALL_PREFIX)
                    growing.start_call(len(growing.calls), Call(call_id, block["name"], ""))
                case {"type": "content_block_delta", "delta": delta}:
                    _add_delta(growing, delta)
                case {"type": "message_delta", "delta": delta}:
                    growing.end(END_REASONS[delta["stop_reason"]])
                    explained = event["octavo"]
                case {"type": "error"}:
                    raise AssertionError(event)
        assert explained is not None, "the stream ended early"
        return self._client.scored(growing, explained)


def _add_delta(growing: Growing, delta: JsonObject) -> None:
    match delta:
        case {"type": "text_delta", "text": text}:
            growing.text += text
        case {"type": "thinking_delta", "thinking": text}:
            growing.reasoning += text
        case {"type": "input_json_delta", "partial_json": text}:
            growing.add_arguments(len(growing.calls) - 1, text)


def _messages_body(one: Conversation) -> JsonObject:
    system = one.messages[0]["content"] if one.messages[0]["role"] == "system" else None
    body: JsonObject = {
        "model": None,
        "max_tokens": one.max_tokens,
        "messages": [_anthropic_message(message) for message in one.messages[system is not None :]],
        "stop_sequences": list(one.stop),
        **_extensions(one),
    }
    if system is not None:
        body["system"] = system
    if "enable_thinking" in one.template:
        is_on = one.template["enable_thinking"]
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024} if is_on else {"type": "disabled"}
    if one.tools:
        body["tools"] = [_anthropic_tool(tool["function"]) for tool in one.tools]
        body["tool_choice"] = _anthropic_choice(one)
    if one.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": one.schema}}
    return body


def _anthropic_message(message: JsonObject) -> JsonObject:
    if message["role"] == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": message["content"],
        }
        return {"role": "user", "content": [result]}
    blocks: list[Json] = []
    if "reasoning_content" in message:
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": "x"})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = function["arguments"]
        arguments = json.loads(given) if isinstance(given, str) else given
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return {"role": message["role"], "content": blocks}


def _anthropic_tool(function: JsonObject) -> JsonObject:
    names = {"parameters": "input_schema"}
    return {names.get(name, name): value for name, value in function.items()}


def _anthropic_choice(one: Conversation) -> JsonObject:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    choice: JsonObject = {"type": kinds.get(one.tool_choice, "tool")}
    if choice["type"] == "tool":
        choice["name"] = one.tool_choice
    return choice if one.parallel_tool_calls else choice | {"disable_parallel_tool_use": True}


# -- responses ---------------------------------------------------------------------------------------------


class AskResponses:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def whole(self, conversation: Conversation) -> Answer:
        return self._of_response(await self._client.whole("/v1/responses", _responses_body(conversation)))

    async def streamed(self, conversation: Conversation) -> Answer:
        """Return what the deltas say, and check that the last event says the same."""
        growing, last = Growing(), None
        async for event in self._client.events("/v1/responses", _responses_body(conversation)):
            match event:
                case {"type": "response.output_item.added", "item": {"type": "function_call"} as item}:
                    growing.start_call(len(growing.calls), Call(item["call_id"], item["name"], ""))
                case {"type": "response.output_text.delta"}:
                    growing.text += event["delta"]
                case {"type": "response.reasoning_text.delta"}:
                    growing.reasoning += event["delta"]
                case {"type": "response.function_call_arguments.delta"}:
                    growing.add_arguments(len(growing.calls) - 1, event["delta"])
                case {"type": "response.completed" | "response.incomplete"}:
                    last = event["response"]
                case {"type": "response.failed"}:
                    raise AssertionError(event)
        assert last is not None, "the stream ended early"
        growing.end("stop" if last["status"] == "completed" else "length")
        answer, whole = self._client.scored(growing, last["octavo"]), self._of_response(last)
        assert answer == whole
        return answer

    def _of_response(self, answer: JsonObject) -> Answer:
        growing = Growing()
        for item in answer["output"]:
            match item["type"]:
                case "reasoning":
                    growing.reasoning += "".join(part["text"] for part in item["content"])
                case "message":
                    growing.text += "".join(part["text"] for part in item["content"])
                case "function_call":
                    call = Call(item["call_id"], item["name"], item["arguments"])
                    growing.start_call(len(growing.calls), call)
        growing.end("stop" if answer["status"] == "completed" else "length")
        return self._client.scored(growing, answer["octavo"])


def _responses_body(one: Conversation) -> JsonObject:
    body: JsonObject = {
        "input": [item for message in one.messages for item in _items(message)],
        "max_output_tokens": one.max_tokens,
        "store": False,
        "stop": list(one.stop),
        "chat_template_kwargs": dict(one.template),
        "continue_final_message": one.continues,
        **_extensions(one),
    }
    if one.tools:
        named = one.tool_choice not in ("auto", "none", "required")
        body |= {
            "tools": [{"type": "function", **tool["function"]} for tool in one.tools],
            "tool_choice": {"type": "function", "name": one.tool_choice} if named else one.tool_choice,
            "parallel_tool_calls": one.parallel_tool_calls,
        }
    if one.schema is not None:
        wanted = {"type": "json_schema", "name": "answer", "schema": one.schema, "strict": True}
        body["text"] = {"format": wanted}
    return body


def _items(message: JsonObject) -> Sequence[JsonObject]:
    if message["role"] == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": message["content"],
            }
        ]
    items: list[JsonObject] = []
    if "reasoning_content" in message:
        part = {"type": "reasoning_text", "text": message["reasoning_content"]}
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]})
    if message["content"]:
        items.append({"role": message["role"], "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        given = function["arguments"]
        arguments = given if isinstance(given, str) else json.dumps(given)
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": arguments,
            }
        )
    return items


# -- comparison --------------------------------------------------------------------------------------------


def with_parsed_calls(answer: Answer) -> Answer:
    """Return the answer with arguments as this module writes them, for an API that returns them parsed."""
    return replace(answer, choices=tuple(map(_with_parsed_calls, answer.choices)))


def _with_parsed_calls(choice: Choice) -> Choice:
    calls = [
        replace(call, arguments=_parsed(call.arguments, is_cut=choice.finish_reason == "length"))
        for call in choice.calls
    ]
    return replace(choice, calls=tuple(calls))


def _parsed(arguments: str, *, is_cut: bool) -> str:
    """Of a call that was cut off, the API returns the complete members, and other invalid JSON as text."""
    try:
        return json.dumps(from_json(arguments, allow_partial=is_cut))
    except ValueError:
        return json.dumps({"INVALID_JSON": arguments})
