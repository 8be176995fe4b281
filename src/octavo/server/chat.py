"""POST /v1/chat/completions"""

from contextlib import AsyncExitStack
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.dialect.choose import reasons_after
from octavo.dialect.reasoning import CLOSE, Reasons
from octavo.frontend.output import Choice, StreamDelta
from octavo.server.auth import caller
from octavo.server.body import read_request
from octavo.server.chat_message import CallIds, finish_reason, message_delta, whole_message
from octavo.server.constraint import constraint
from octavo.server.errors import unsupported
from octavo.server.generation import Asked, Generation, raise_if_failed
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.messages import render
from octavo.server.openapi import EVENTS, GENERATION_ERRORS, failures, json_body
from octavo.server.record import record_of
from octavo.server.sampling_request import chat_params
from octavo.server.schema import ChatRequest
from octavo.server.sse import ChunkFrame, EventStream, encode
from octavo.server.state import ServerState
from octavo.server.tool_use import answer_format, tool_use
from octavo.server.usage import explanation, usage, usage_of

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    openapi_extra=json_body(ChatRequest),
    responses={200: EVENTS, **failures(*GENERATION_ERRORS)},
)
async def chat_completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_door()
    body = await read_request(request, ChatRequest, state.options.max_body)
    check_supported(body)
    use = tool_use(body, state.model.dialect.family)
    state.check_model(body.model)
    asked = Asked(
        response_id=state.new_id("chatcmpl"),
        fields=body,
        params=chat_params(body, state.model.defaults),
        identity=caller(request),
        add_special_tokens=False,  # the template has written them
    )
    async with AsyncExitStack() as stack:
        generation = await stack.enter_async_context(
            Generation(state, asked, record_of(request), request.receive)
        )
        prompt = await generation.timed(render(state, body.messages, body, use.for_template))
        reasons = reasons_after(prompt, state.model.dialect)
        if use.lead:  # the answer begins with a call: if a thought has begun, it has ended
            prompt += (CLOSE if reasons is Reasons.BEGUN else "") + use.lead
            reasons = Reasons.NEVER
        await generation.constrain(constraint(state, body, use, reasons))
        await generation.prepare([prompt], answer_format(state.model, use, reasons))
        await generation.submit()
        if body.stream:
            stack.pop_all()
            return EventStream(generation, ChatChunks(generation, body))
        await generation.finish()
        return Response(encode(whole_answer(generation, body)), media_type="application/json")


def check_supported(body: ChatRequest) -> None:
    """What is not there yet is refused by its name, rather than ignored."""
    if body.functions:
        raise unsupported("functions", "calling functions")
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", "output other than text")
    for name in ("audio", "web_search_options", "function_call"):
        if getattr(body, name) is not None:
            raise unsupported(name, name)
    if body.stream and body.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", "prompt_logprobs in a stream")


def head(generation: Generation, kind: str) -> dict[str, Any]:
    return {
        "id": generation.asked.response_id,
        "object": kind,
        "created": generation.created,
        "model": generation.state.model.name,
        "system_fingerprint": generation.state.fingerprint,
    }


def whole_answer(generation: Generation, body: ChatRequest) -> dict[str, Any]:
    (output,) = generation.results.values()
    answer = head(generation, "chat.completion") | {
        "choices": [whole_choice(generation, body, choice) for choice in output.choices],
        "usage": usage_of([output]),
    }
    if body.return_token_ids:
        answer["prompt_token_ids"] = output.prompt_ids
    if output.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(generation.state.model.tokenizer, output.prompt_logprobs)
    if body.wants_explanation:
        answer["octavo"] = explanation(generation)
    return answer


def call_ids(generation: Generation) -> CallIds:
    return CallIds(generation.asked.response_id, generation.state.model.dialect.call_id_length)


def whole_choice(generation: Generation, body: ChatRequest, choice: Choice) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "index": choice.index,
        "message": whole_message(choice, call_ids(generation)),
        "logprobs": (
            None
            if choice.logprobs is None
            else chat_logprobs(generation.state.model.tokenizer, choice.logprobs)
        ),
        "finish_reason": finish_reason(choice.finish_reason, has_calls=bool(choice.calls)),
    }
    if body.return_token_ids:
        shown["token_ids"] = choice.token_ids
    return shown


class ChatChunks:
    """Events of a streamed answer. A plain piece of text costs one encoding of that text and a join."""

    def __init__(self, generation: Generation, body: ChatRequest) -> None:
        self._generation = generation
        self._body = body
        self._tokenizer = generation.state.model.tokenizer
        self._frame = ChunkFrame(head(generation, "chat.completion.chunk"), has_usage=body.includes_usage)
        self._is_plain = not (body.logprobs or body.return_token_ids or body.has_continuous_usage)
        self._plain_starts: dict[int, bytes] = {}  # of choices whose role has been said
        self._plain_end = b'},"logprobs":null,"finish_reason":null}' + self._frame.end
        self._num_completion = 0
        self._call_ids = call_ids(generation)
        self._with_calls: set[int] = set()  # choices

    def of_delta(self, delta: StreamDelta) -> bytes:
        index = delta.choice  # a chat has one prompt
        if delta.calls:
            self._with_calls.add(index)
        if self._is_plain and delta.finish_reason is None and not delta.reasoning and not delta.calls:
            start = self._plain_starts.get(index)
            if not delta.text:
                return b""
            if start is not None:
                return start + encode(delta.text) + self._plain_end
        raise_if_failed(delta.finish_reason, delta.error, delta.error_code)
        return self._full(index, delta)

    def at_end(self) -> bytes:
        body = self._body
        more = {"octavo": explanation(self._generation)} if body.wants_explanation else {}
        if body.includes_usage:
            return self._frame.chunk(b"", usage=usage_of(self._generation.results.values()), **more)
        return self._frame.chunk(b"", **more) if more else b""

    def _full(self, index: int, delta: StreamDelta) -> bytes:
        is_first = index not in self._plain_starts
        self._plain_starts[index] = (
            self._frame.start + b'{"index":' + str(index).encode() + b',"delta":{"content":'
        )
        message = ({"role": "assistant", "content": ""} if is_first else {}) | message_delta(
            delta, self._call_ids
        )
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
