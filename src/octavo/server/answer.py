"""The response to a generation request: one JSON body, or a stream of events."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from octavo.frontend.output import StreamDelta
from octavo.frontend.updates import Update
from octavo.server.generation import Generation, Work
from octavo.server.http.errors import ClientDisconnected, as_api_error
from octavo.server.http.paced import PacedResponse
from octavo.server.http.sse import AFTER_PING, DONE, HEADERS, PING, PING_SECONDS, encode, error_event

MAX_LOGPROBS = 256  # entries, each with up to 20 alternatives, that the event loop encodes itself

Encoded = TypeVar("Encoded")


class AnswerWriter(Protocol):
    """How an endpoint encodes the output of a generation. Events are complete or empty."""

    def encode_delta(self, delta: StreamDelta) -> bytes: ...

    def encode_end(self) -> bytes: ...

    def full_body(self) -> dict[str, Any]:
        """Return the body of a response that is not streamed. The generation must be done."""


async def respond(
    generation: Generation, work: Work, make_writer: Callable[[Generation], AnswerWriter]
) -> Response:
    """Run a generation and return its response. Takes ownership of the generation and closes it.

    `make_writer` is called after the generation has started.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(generation)
        await generation.start(work)
        writer = make_writer(generation)
        if generation.context.is_stream:
            stack.pop_all()
            return EventStream(generation, writer)
        await generation.finish()
        return PacedResponse(await _encoded(generation.results.values(), lambda: encode(writer.full_body())))


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

    def __init__(self, generation: Generation, writer: AnswerWriter) -> None:
        super().__init__((), headers=HEADERS)
        self._generation = generation
        self._writer = writer
        self._wrote_at = time.monotonic()
        self._has_pinged = False  # the last write was a ping
        self._ticker: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ticker = asyncio.get_running_loop().call_later(PING_SECONDS, self._tick)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._pump(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientDisconnected:
            pass
        finally:
            self._ticker.cancel()
            await self._generation.close()

    async def _pump(self, send: Send) -> None:
        generation, writer = self._generation, self._writer
        is_done = False
        while not is_done:
            events: list[bytes] = []
            try:
                updates = await generation.take()
                is_done = generation.is_done
                await _encoded(updates, partial(self._add, events, updates))
                if is_done:
                    events += (writer.encode_end(), DONE)
                elif not updates:
                    events.append(PING)
            except ClientDisconnected:
                raise
            except Exception as error:
                is_done = True
                events += (self._failure(error), DONE)
            body = b"".join(events)
            if body:
                is_ping = body == PING
                await self._write(send, AFTER_PING + body if self._has_pinged and not is_ping else body)
                self._has_pinged = is_ping

    def _add(self, events: list[bytes], updates: Iterable[Update]) -> None:
        for update in updates:
            if isinstance(update, StreamDelta):
                events.append(self._writer.encode_delta(update))  # noqa: PERF401 - keep those before an error

    def _failure(self, error: Exception) -> bytes:
        record = self._generation.record
        failure = as_api_error(error, record.request_id)
        record.note_error(failure)
        return error_event(failure)

    async def _write(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._wrote_at = time.monotonic()

    def _tick(self) -> None:
        """Wake the generation for a ping if nothing was written recently."""
        if time.monotonic() - self._wrote_at > PING_SECONDS / 2:
            self._generation.wake()
        self._ticker = asyncio.get_running_loop().call_later(PING_SECONDS, self._tick)
