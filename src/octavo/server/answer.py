"""The answer to a request for tokens: whole, or as events while it comes."""

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
from octavo.server.http.errors import ClientGone, as_api_error
from octavo.server.http.paced import PacedResponse
from octavo.server.http.sse import AFTER_PING, DONE, HEADERS, PING, PING_SECONDS, encode, error_event

MOST_SCORES = 256  # of tokens, each with up to twenty others, that are written in one turn of the event loop

Written = TypeVar("Written")


class Answer(Protocol):
    """How an endpoint writes what a generation gives. Events are whole, or nothing."""

    def of_delta(self, delta: StreamDelta) -> bytes: ...

    def at_end(self) -> bytes: ...

    def whole(self) -> dict[str, Any]:
        """Once the generation is done."""


async def respond(generation: Generation, work: Work, written: Callable[[Generation], Answer]) -> Response:
    """Takes over a generation, and closes it in the end. `written` is called once it has been started."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(generation)
        await generation.start(work)
        answer = written(generation)
        if generation.asked.is_stream:
            stack.pop_all()
            return EventStream(generation, answer)
        await generation.finish()
        return PacedResponse(await _made(generation.results.values(), lambda: encode(answer.whole())))


async def _made(updates: Iterable[Update], make: Callable[[], Written]) -> Written:
    """Scores by the thousand are written in a thread, where others have their turn every few milliseconds."""
    if sum(map(_num_scores, updates)) <= MOST_SCORES:
        return make()
    return await asyncio.to_thread(make)


def _num_scores(update: Update) -> int:
    if isinstance(update, StreamDelta):
        return len(update.logprobs) + len(update.prompt_logprobs)
    return len(update.prompt_logprobs or ()) + sum(len(choice.logprobs or ()) for choice in update.choices)


class EventStream(StreamingResponse):
    """Events as they come, comments while nothing comes, and an end that is always said.

    All that has come since the last write goes out in one write: a reader that is slower than the engine
    gets fewer, larger ones. One that does not read at all is bounded by the number of updates that may
    wait, and cut off by its connection (`BoundedHttpProtocol`).
    """

    def __init__(self, generation: Generation, answer: Answer) -> None:
        super().__init__((), headers=HEADERS)
        self._generation = generation
        self._answer = answer
        self._wrote_at = time.monotonic()
        self._has_pinged = False  # and written no event since
        self._ticker: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ticker = asyncio.get_running_loop().call_later(PING_SECONDS, self._tick)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._pump(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGone:
            pass
        finally:
            self._ticker.cancel()
            await self._generation.close()

    async def _pump(self, send: Send) -> None:
        generation, answer = self._generation, self._answer
        is_done = False
        while not is_done:
            events: list[bytes] = []
            try:
                updates = await generation.take()
                is_done = generation.is_done
                await _made(updates, partial(self._add, events, updates))
                if is_done:
                    events += (answer.at_end(), DONE)
                elif not updates:
                    events.append(PING)
            except ClientGone:
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
                events.append(self._answer.of_delta(update))  # noqa: PERF401 - what came before an error counts

    def _failure(self, error: Exception) -> bytes:
        record = self._generation.record
        failure = as_api_error(error, record.request_id)
        record.note_error(failure)
        return error_event(failure)

    async def _write(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._wrote_at = time.monotonic()

    def _tick(self) -> None:
        """Every few seconds: has anything been written?"""
        if time.monotonic() - self._wrote_at > PING_SECONDS / 2:
            self._generation.wake()
        self._ticker = asyncio.get_running_loop().call_later(PING_SECONDS, self._tick)
