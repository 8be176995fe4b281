"""Encodes an answer as a response object, or as its events.

Items follow one another: an item is done before the next is added. Deltas say where calls are in the text, so
the items of a stream are those of the response that is not streamed, however the answer was divided.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from octavo.dialect.pieces import CallArguments, CallStart
from octavo.frontend.answer_order import AnswerOrder
from octavo.frontend.output import StreamDelta
from octavo.protocol import TokenLogprob
from octavo.server.generation import Generation, raise_if_failed
from octavo.server.http.errors import ApiError
from octavo.server.http.sse import Framing, encode, named_event
from octavo.server.openai.logprobs import chat_entries
from octavo.server.openai.responses import resource
from octavo.server.openai.responses.asked import AskedResponse
from octavo.server.openai.responses.items import Item, with_ids
from octavo.server.openai.responses.resource import NO_ENTRIES, OutputItems, Segment
from octavo.server.openai.responses.tools import ClientTool
from octavo.server.stored_responses import StoredResponse

TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}


class ResponsesAnswer:
    def __init__(self, asked: AskedResponse, generation: Generation) -> None:
        self._asked = asked
        self._generation = generation
        self._tokenizer = generation.state.model.tokenizer
        response_id = generation.context.response_id
        self._items = OutputItems(response_id, asked.tools.by_function())
        is_stored = asked.body.is_stored and generation.state.responses.is_enabled
        self._response = resource.in_progress(asked.body, generation, is_stored=is_stored)
        self._number = 0  # of the next event
        self._order = AnswerOrder()
        self._open: Segment | None = None
        self._custom: ClientTool | None = None  # the custom tool that the open item calls
        self._texts: list[str] = []  # of the open item
        self._done: list[Item] = []
        self._entries: list[bytes] = []  # logprobs, encoded as they arrive
        self._plain_entries: list[bytes] = []  # without bytes, as some events have them
        self.framing = Framing(self._progress, self._failure, opening=self._opening)

    # -- a response that is not streamed -----------------------------------------------------------------

    def full_body(self) -> dict[str, Any]:
        (result,) = self._generation.results.values()
        choice = result.choices[0]
        if choice.logprobs is not None:
            self._add_logprobs(choice.logprobs)
        parts = list(resource.segments(choice))
        statuses = resource.item_statuses(len(parts), choice.finish_reason)
        output = [
            self._items.item(part, index, status, self._logprobs)
            for index, (part, status) in enumerate(zip(parts, statuses, strict=True))
        ]
        return self._ended(output)

    def _ended(self, output: list[Item]) -> dict[str, Any]:
        """Return the response at its end, which is stored."""
        (result,) = self._generation.results.values()
        response = resource.ended(self._response, output, result)
        if self._asked.body.wants_explanation:
            response["octavo"] = self._generation.explanation()
        if self._response["store"]:
            self._store(response)
        return response

    def _store(self, response: dict[str, Any]) -> None:
        asked, context = self._asked, self._generation.context
        given = with_ids(asked.given, context.response_id)
        stored = StoredResponse(
            context.response_id, asked.body.previous_response_id, encode(response), encode(given)
        )
        self._generation.state.responses.put(asked.owner, context.tenant.name, stored)

    # -- events ------------------------------------------------------------------------------------------

    def encode_delta(self, delta: StreamDelta) -> Sequence[tuple[StreamDelta, bytes]]:
        return ((delta, b"".join(self._delta_events(delta))),)

    def encode_end(self) -> bytes:
        (result,) = self._generation.results.values()
        if self._open is None:
            events = [*self._add(Segment("message"))]
        else:
            events = []
        (status,) = resource.item_statuses(1, result.finish_reason)
        events += self._finish(status)
        response = self._ended(self._done)
        events.append(self._event(TERMINAL[response["status"]], response=response))
        return b"".join(events)

    def _opening(self) -> bytes:
        return self._event("response.created", response=self._response) + self._progress()

    def _progress(self) -> bytes:
        """Also sent as a ping: some agents take a stream with only comments for idle.

        An answer kept for repeated requests has no pings, so its numbers may have gaps.
        """
        return self._event("response.in_progress", response=self._response)

    def _failure(self, error: ApiError) -> bytes:
        return self._event("response.failed", response=resource.failed(self._response, self._done, error))

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = named_event(kind, {"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return event

    def _delta_events(self, delta: StreamDelta) -> Iterator[bytes]:
        raise_if_failed(delta)
        self._add_logprobs(delta.logprobs)
        if delta.reasoning:
            yield from self._grow("reasoning", delta.reasoning)
        for part in self._order.add(delta.text, delta.calls, is_last=delta.finish_reason is not None):
            match part:
                case str():
                    yield from self._grow("message", part)
                case CallStart():
                    yield from self._add(Segment("call", call=part))
                case CallArguments():
                    yield from self._grow("call", part.text)

    def _grow(self, kind: str, text: str) -> Iterator[bytes]:
        """Add text to the open item, or to a new one."""
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._add(Segment(kind))
        assert self._open is not None
        self._texts.append(text)
        if kind == "message":
            yield self._event("response.output_text.delta", **self._where, delta=text, logprobs=[])
        elif kind == "reasoning":
            yield self._event("response.reasoning_text.delta", **self._where, delta=text)
        elif self._custom is None:
            yield self._event("response.function_call_arguments.delta", **self._where, delta=text)
        elif self._custom.has_grammar:  # other input is in JSON, and is sent when it is complete
            yield self._event("response.custom_tool_call_input.delta", **self._where, delta=text)

    def _add(self, segment: Segment) -> Iterator[bytes]:
        """Begin an item. The one before it is done."""
        if self._open is not None:
            yield from self._finish("completed")
        self._open, self._texts = segment, []
        index = len(self._done)
        item = self._items.item(segment, index, "in_progress")
        yield self._event("response.output_item.added", output_index=index, item=item)
        tool = self._items.tool(segment)
        self._custom = tool if tool is not None and tool.is_custom else None
        self._where: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        if segment.kind != "call":
            self._where["content_index"] = 0
            yield self._event("response.content_part.added", **self._where, part=_part(segment.kind, ""))

    def _finish(self, status: str) -> Iterator[bytes]:
        """End the open item."""
        assert self._open is not None
        segment, where = self._open, self._where
        text = segment.text = "".join(self._texts)
        logprobs = self._logprobs if segment.kind == "message" else NO_ENTRIES
        item = self._items.item(segment, len(self._done), status, logprobs)
        if segment.kind == "message":
            yield self._event(
                "response.output_text.done", **where, text=text, logprobs=_json_list(self._plain_entries)
            )
            yield self._event("response.content_part.done", **where, part=item["content"][0])
        elif segment.kind == "reasoning":
            yield self._event("response.reasoning_text.done", **where, text=text)
            yield self._event("response.content_part.done", **where, part=_part("reasoning", text))
        elif self._custom is not None:
            given = self._custom.custom_input(text)
            if given and not self._custom.has_grammar:
                yield self._event("response.custom_tool_call_input.delta", **where, delta=given)
            yield self._event("response.custom_tool_call_input.done", **where, input=given)
        else:
            yield self._event("response.function_call_arguments.done", **where, arguments=text)
        yield self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._open = None

    # -- logprobs: of all generated tokens, in the only message ------------------------------------------

    def _add_logprobs(self, scores: Sequence[TokenLogprob]) -> None:
        """Encode logprobs as they arrive, because encoding many at once blocks the event loop."""
        if not self._asked.body.has_logprobs:
            return
        for entry in chat_entries(self._tokenizer, scores):
            self._entries.append(encode(entry))
            self._plain_entries.append(encode(_without_bytes(entry)))

    @property
    def _logprobs(self) -> msgspec.Raw:
        return _json_list(self._entries)


def _part(kind: str, text: str) -> Item:
    return resource.text_part(text) if kind == "message" else {"type": "reasoning_text", "text": text}


def _json_list(entries: Sequence[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(entries) + b"]")


def _without_bytes(entry: Mapping[str, Any]) -> dict[str, Any]:
    top = [{"token": one["token"], "logprob": one["logprob"]} for one in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}
