"""POST /v1/chat/completions"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.dialect.pieces import CallArguments, CallStart
from octavo.frontend.chat import ChatTask
from octavo.frontend.output import Choice, StreamDelta
from octavo.frontend.tool_use import OnlyTool, ToolChoice
from octavo.protocol import SamplingParams
from octavo.server.chat_work import ChatWork
from octavo.server.generation import Generation, raise_if_failed
from octavo.server.http.body import read_request
from octavo.server.http.errors import unsupported
from octavo.server.http.keys import caller
from octavo.server.http.sse import encode
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.messages import template_arguments, template_messages
from octavo.server.openai.params import chat_params, requested_grammar
from octavo.server.openai.response import ChunkFrame, extras, framing, head, usage, usage_of
from octavo.server.openai.schema import ChatRequest, NamedTool
from octavo.server.openapi import EVENTS, GENERATION_ERRORS, REPEATED, failures, json_body
from octavo.server.repeatable import respond_once
from octavo.server.state import ServerState

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    openapi_extra=json_body(ChatRequest) | REPEATED,
    responses={200: EVENTS, **failures(*GENERATION_ERRORS)},
)
async def chat_completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_queue(caller(request))
    body = await read_request(request, ChatRequest, state.options.max_body)
    check_supported(body)
    state.check_model(body.model)
    work = ChatWork(chat_task(body, state.model.defaults))
    return await respond_once(
        request, body, work, partial(ChatAnswer, body), prefix="chatcmpl-", framing=framing(body)
    )


# -- body to task ------------------------------------------------------------------------------------------


def check_supported(body: ChatRequest) -> None:
    """Reject unsupported fields instead of ignoring them."""
    if body.functions:
        raise unsupported("functions", "functions, the predecessor of tools,")
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", "output other than text")
    for name in ("audio", "web_search_options", "function_call"):
        if getattr(body, name) is not None:
            raise unsupported(name, name)
    if body.stream and body.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", "prompt_logprobs in a stream")


def chat_task(body: ChatRequest, defaults: SamplingParams) -> ChatTask:
    grammar, choice = requested_grammar(body), body.tool_choice
    params = chat_params(body, defaults)
    return ChatTask(
        template_messages(body.messages),
        params if grammar is None else msgspec.structs.replace(params, grammar=grammar.spec),
        grammar_field="response_format" if grammar is None else grammar.field,
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        tool_choice=(
            OnlyTool(choice.function.name)
            if isinstance(choice, NamedTool)
            else ToolChoice(choice or ToolChoice.AUTO)
        ),
        allows_several_calls=body.parallel_tool_calls is not False,
        template=template_arguments(body),
    )


# -- output to response ------------------------------------------------------------------------------------


class ChatAnswer:
    """Encodes the output as a body or as events. An event with only text costs one encoding and one join."""

    def __init__(self, body: ChatRequest, generation: Generation) -> None:
        self._generation = generation
        self._body = body
        self.framing = framing(body)
        self._tokenizer = generation.state.model.tokenizer
        self._frame = ChunkFrame(head(generation, "chat.completion.chunk"), has_usage=body.includes_usage)
        self._is_plain = not (body.logprobs or body.return_token_ids or body.has_continuous_usage)
        self._plain_starts: dict[int, bytes] = {}  # of choices whose role has been sent
        self._plain_end = b'},"logprobs":null,"finish_reason":null}' + self._frame.end
        self._num_completion = 0
        self._with_calls: set[int] = set()  # indices of choices

    def encode_delta(self, delta: StreamDelta) -> Sequence[tuple[StreamDelta, bytes]]:
        return ((delta, self._event(delta)),)

    def _event(self, delta: StreamDelta) -> bytes:
        index = delta.choice  # a chat has one prompt
        if delta.calls:
            self._with_calls.add(index)
        if self._is_plain and delta.finish_reason is None and not delta.reasoning and not delta.calls:
            start = self._plain_starts.get(index)
            if not delta.text:
                return b""
            if start is not None:
                return start + encode(delta.text) + self._plain_end
        raise_if_failed(delta)
        return self._full(index, delta)

    def encode_end(self) -> bytes:
        more = extras(self._body, self._generation)
        if self._body.includes_usage:
            return self._frame.chunk(b"", usage=usage_of(self._generation.results.values()), **more)
        return self._frame.chunk(b"", **more) if more else b""

    def full_body(self) -> dict[str, Any]:
        generation, body = self._generation, self._body
        (output,) = generation.results.values()
        answer = head(generation, "chat.completion") | {
            "choices": [self._whole_choice(choice) for choice in output.choices],
            "usage": usage_of([output]),
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = output.prompt_ids
        if output.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._tokenizer, output.prompt_logprobs)
        return answer | extras(body, generation)

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = choice.logprobs
        shown: dict[str, Any] = {
            "index": choice.index,
            "message": whole_message(choice),
            "logprobs": None if logprobs is None else chat_logprobs(self._tokenizer, logprobs),
            "finish_reason": finish_reason(choice.finish_reason, has_calls=bool(choice.calls)),
        }
        if self._body.return_token_ids:
            shown["token_ids"] = choice.token_ids
        return shown

    def _full(self, index: int, delta: StreamDelta) -> bytes:
        is_first = index not in self._plain_starts
        self._plain_starts[index] = (
            self._frame.start + b'{"index":' + str(index).encode() + b',"delta":{"content":'
        )
        message = ({"role": "assistant", "content": ""} if is_first else {}) | message_delta(delta)
        choice: dict[str, Any] = {
            "index": index,
            "delta": message,
            "logprobs": chat_logprobs(self._tokenizer, delta.logprobs) if self._body.logprobs else None,
            "finish_reason": finish_reason(delta.finish_reason, has_calls=index in self._with_calls),
        }
        more: dict[str, Any] = {}
        if self._body.return_token_ids:
            choice["token_ids"] = delta.token_ids
            if is_first:
                more["prompt_token_ids"] = self._generation.prepared[0].prompt_ids
        if self._body.has_continuous_usage:
            self._num_completion += len(delta.token_ids)
            num_prompt = len(self._generation.prepared[0].prompt_ids)
            more["usage"] = usage(num_prompt, self._num_completion, delta.num_cached)
        return self._frame.chunk(msgspec.json.encode(choice), **more)


def finish_reason(reason: str | None, *, has_calls: bool) -> str | None:
    """Return `tool_calls` for an answer that stopped after tool calls."""
    return "tool_calls" if reason == "stop" and has_calls else reason


def whole_message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text if choice.text or not choice.calls else None,
        "refusal": None,
    }
    if choice.reasoning is not None:
        message |= _reasoning(choice.reasoning)
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    return message


def message_delta(delta: StreamDelta) -> dict[str, Any]:
    """Return only what is new: clients concatenate deltas."""
    message: dict[str, Any] = {}
    if delta.text:
        message["content"] = delta.text
    if delta.reasoning:
        message |= _reasoning(delta.reasoning)
    if delta.calls:
        message["tool_calls"] = _call_deltas(delta.calls)
    return message


def _reasoning(text: str) -> dict[str, str]:
    """Return the text under both names that clients use."""
    return {"reasoning_content": text, "reasoning": text}


def _call_deltas(pieces: Sequence[CallStart | CallArguments]) -> list[dict[str, Any]]:
    return [
        {
            "index": piece.index,
            "id": piece.id,
            "type": "function",
            "function": {"name": piece.name, "arguments": ""},
        }
        if isinstance(piece, CallStart)
        else {"index": piece.index, "function": {"arguments": piece.text}}
        for piece in pieces
    ]
