"""The response object, and the segments of an answer as output items."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.dialect.pieces import CallArguments, CallStart
from octavo.frontend.answer_order import ordered
from octavo.frontend.output import Choice, RequestOutput
from octavo.server.generation import Generation
from octavo.server.http.errors import ApiError
from octavo.server.openai.responses.items import Item, item_id
from octavo.server.openai.responses.schema import ResponsesRequest
from octavo.server.openai.responses.tools import ClientTool

NO_ENTRIES = msgspec.Raw(b"[]")


@dataclass
class Segment:
    """A part of an answer that becomes one item: reasoning, a message or a call."""

    kind: str
    text: str = ""  # of a call: its arguments, as the model wrote them
    call: CallStart | None = None


def segments(choice: Choice) -> Iterator[Segment]:
    """Return the segments of a complete answer. An answer without any is an empty message."""
    if choice.reasoning:
        yield Segment("reasoning", choice.reasoning)
    call: CallStart | None = None
    for part in ordered(choice):
        match part:
            case str():
                yield Segment("message", part)
            case CallStart():
                call = part
            case CallArguments():
                yield Segment("call", part.text, call)
    if not (choice.text or choice.calls or choice.reasoning):
        yield Segment("message")


class OutputItems:
    """Encodes segments as items of one response."""

    def __init__(self, response_id: str, tools: Mapping[str, ClientTool]) -> None:
        self._response_id = response_id
        self._tools = tools  # by the name that the model sees

    def item(self, segment: Segment, index: int, status: str, logprobs: msgspec.Raw = NO_ENTRIES) -> Item:
        if segment.kind == "message":
            is_begun = status == "in_progress"
            return {
                "id": self._id("message", index),
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": [] if is_begun else [text_part(segment.text, logprobs)],
            }
        if segment.kind == "reasoning":
            content = {"content": [{"type": "reasoning_text", "text": segment.text}]}
            return {
                "id": self._id("reasoning", index),
                "type": "reasoning",
                "status": status,
                "summary": [],
                **({"content": []} if status == "in_progress" else content),
            }
        call, tool = segment.call, self.tool(segment)
        assert call is not None
        named = {"call_id": call.id, "name": call.name if tool is None else tool.name}
        if tool is not None and tool.namespace is not None:
            named["namespace"] = tool.namespace
        if tool is not None and tool.is_custom:
            kind = "custom_tool_call"
            text = "" if status == "in_progress" else tool.custom_input(segment.text)
            return {"id": self._id(kind, index), "type": kind, **named, "input": text}
        kind = "function_call"
        return {
            "id": self._id(kind, index),
            "type": kind,
            "status": status,
            **named,
            "arguments": segment.text,
        }

    def tool(self, segment: Segment) -> ClientTool | None:
        """Return the tool of a call; None if the model called one that does not exist."""
        return None if segment.call is None else self._tools.get(segment.call.name)

    def _id(self, kind: str, index: int) -> str:
        return item_id(kind, self._response_id, str(index))


def text_part(text: str, logprobs: msgspec.Raw = NO_ENTRIES) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def item_statuses(num_items: int, finish_reason: str) -> list[str]:
    """Return the statuses of all items of an answer: the last one may have been cut off."""
    last = "incomplete" if finish_reason == "length" else "completed"
    return ["completed"] * (num_items - 1) + [last]


# -- the response ------------------------------------------------------------------------------------------


def in_progress(body: ResponsesRequest, generation: Generation, *, is_stored: bool) -> dict[str, Any]:
    """Return the response before it has any output.

    It has no `completed_at`: the response to the same request with the same Idempotency-Key is the same.
    """
    context, params = generation.context, generation.prepared[0].params
    options = body.reasoning
    return {
        "id": context.response_id,
        "object": "response",
        "created_at": context.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": context.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if options is None else options.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": is_stored,
        "temperature": params.temperature,
        "text": {"format": _text_format(body)},
        "tool_choice": _dumped(body.tool_choice) or "auto",
        "tools": [_dumped(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def ended(begun: Mapping[str, Any], output: list[Item], result: RequestOutput) -> dict[str, Any]:
    """Return the response when the answer has ended."""
    is_complete = result.finish_reason != "length"
    return {
        **begun,
        "status": "completed" if is_complete else "incomplete",
        "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
        "output": output,
        "usage": _usage(result),
    }


def failed(begun: Mapping[str, Any], output: list[Item], error: ApiError) -> dict[str, Any]:
    codes = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
    problem = {"code": codes.get(error.status, "server_error"), "message": str(error)}
    return {**begun, "status": "failed", "error": problem, "output": output}


def _usage(result: RequestOutput) -> dict[str, Any]:
    num_input = len(result.prompt_ids)
    num_output = sum(len(choice.token_ids) for choice in result.choices)
    return {
        "input_tokens": num_input,
        "input_tokens_details": {"cached_tokens": result.num_cached, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": sum(one.num_reasoning for one in result.choices)},
        "total_tokens": num_input + num_output,
    }


def _text_format(body: ResponsesRequest) -> dict[str, Any]:
    form = None if body.text is None else body.text.format
    if form is None or form.type != "json_schema":
        return {"type": "text" if form is None else form.type}
    return {"type": form.type, "name": form.name or "response", **_dumped(form)}


def _dumped(model: Any) -> Any:
    if model is None or isinstance(model, str):
        return model
    return model.model_dump(exclude_none=True, by_alias=True)
