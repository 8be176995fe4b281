"""The response to a generation request: one JSON body, or a stream of events."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from octavo.frontend.output import StreamDelta
from octavo.frontend.updates import Update
from octavo.server.event_ids import EventIds
from octavo.server.generation import Generation, Work
from octavo.server.http.errors import ClientDisconnected, as_api_error
from octavo.server.http.paced import PacedResponse
from octavo.server.http.sse import PING_SECONDS, Framing, encode
from octavo.server.kept_answers import KeptAnswer

MAX_LOGPROBS = 256  # entries, each with up to 20 alternatives, that the event loop encodes itself

Encoded = TypeVar("Encoded")


class AnswerWriter(Protocol):
    """How an endpoint encodes the output of a generation. Events are complete or empty."""

    @property
    def framing(self) -> Framing: ...

    def encode_delta(self, delta: StreamDelta) -> Sequence[tuple[StreamDelta, bytes]]:
        """Return deltas with their events, or none to hold the delta back until a later call."""

    def encode_end(self) -> bytes: ...

    def full_body(self) -> dict[str, Any]:
        """Return the body of a response that is not streamed. The generation must be done."""


async def respond(
    generation: Generation,
    work: Work,
    make_writer: Callable[[Generation], AnswerWriter],
    kept: KeptAnswer | None = None,
    *,
    headers: Mapping[str, str],
) -> Response:
    """Run a generation and return its response. Takes ownership of the generation and closes it.

    `make_writer` is called after the generation has started. A complete response is added to `kept`.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(generation)
        await generation.start(work)
        writer = make_writer(generation)
        if generation.context.is_stream:
            stack.pop_all()
            return EventStream(generation, writer, kept, headers=headers)
        await generation.finish()
        body = await _encoded(generation.results.values(), lambda: encode(writer.full_body()))
        if kept is not None:
            kept.add(body)
            kept.end()
        return PacedResponse(body, headers=headers)


async def _encoded(updates: Iterable[Update], encode_all: Callable[[], Encoded]) -> Encoded:
    """Encode large numbers of logprobs in a thread, so that the event loop runs every few milliseconds."""
    if sum(map(_num_logprobs, updates)) <= MAX_LOGPROBS:
        return encode_all()
    return await asyncio.to_thread(encode_all)


def _num_logprobs(update: Update) -> int:
    if isinstance(update, StreamDelta):
        return len(update.logprobs) + len(update.prompt_logprobs)
    return len(update.prompt_logprobs or ()) + sum(len(choice.logprobs or ()) for choice in update.choices)


class EventStream(StreamingResponse):
    """Sends events as they are produced, comments while there are none, and always an explicit end.

    Everything since the last write goes out in one write: a client that is slower than the engine gets
    fewer, larger writes. For a client that does not read at all, the number of pending updates is bounded,
    and `BoundedHttpProtocol` closes the connection.
    """

    def __init__(
        self,
        generation: Generation,
        writer: AnswerWriter,
        kept: KeptAnswer | None = None,
        *,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__((), headers={**writer.framing.headers, **headers})
        self._generation = generation
        self._ids = generation.event_ids
        self._writer = writer
        self._framing = writer.framing
        self._kept = kept
        self._wrote_at = time.monotonic()
        self._has_pinged = False  # the last write was a ping
        self._ticker: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ticker = asyncio.get_running_loop().call_later(PING_SECONDS, self._tick)
        try:
            if self._kept is not None:
                self._kept.begin()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._open(send)
            await self._pump(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientDisconnected:
            pass
        finally:
            self._ticker.cancel()
            if self._kept is not None:
                self._kept.fail()  # unless it is complete
            await self._generation.close()

    async def _open(self, send: Send) -> None:
        if opening := self._framing.opening():
            if self._kept is not None:
                self._kept.add(opening)
            await self._write(send, opening)

    async def _pump(self, send: Send) -> None:
        generation, kept = self._generation, self._kept
        is_done = has_failed = False
        while not is_done:
            events: list[bytes] = []
            is_ping = False
            try:
                updates = await generation.take()
                is_done = generation.is_done
                is_ping = not updates and not is_done
                await _encoded(updates, partial(self._add, events, updates))
                if is_done:
                    events += (self._end(), self._framing.done)
                elif is_ping:
                    events.append(self._framing.ping())
            except ClientDisconnected:
                raise
            except Exception as error:
                is_done = has_failed = True
                events += (self._failure(error), self._framing.done)
            body = b"".join(events)
            if not body:
                continue
            if kept is not None and not is_ping:
                kept.add(body)
                if is_done:
                    kept.end(has_failed=has_failed)
            await self._write(
                send, body if is_ping or not self._has_pinged else self._framing.after_ping + body
            )
            self._has_pinged = is_ping

    def _add(self, events: list[bytes], updates: Iterable[Update]) -> None:
        for update in updates:
            if isinstance(update, StreamDelta):
                for delta, event in self._writer.encode_delta(update):  # keep those before an error
                    events.append(event if self._ids is None else self._marked(self._ids, delta, event))

    def _marked(self, ids: EventIds, delta: StreamDelta, event: bytes) -> bytes:
        return ids.mark(self._generation.choice_index(delta), delta, event)

    def _end(self) -> bytes:
        event = self._writer.encode_end()
        return event if self._ids is None else self._ids.mark_end(event)

    def _failure(self, error: Exception) -> bytes:
        record = self._generation.record
        failure = as_api_error(error, record.request_id)
        record.note_error(failure)
        return self._framing.failure(failure)

    async def _write(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._wrote_at = time.monotonic()

    def _tick(self) -> None:
        """Wake the generation for a ping if nothing was written recently."""
        if time.monotonic() - self._wrote_at > PING_SECONDS / 2:
            self._generation.wake()
        self._ticker = asyncio.get_running_loop().call_later(PING_SECONDS, self._tick)
