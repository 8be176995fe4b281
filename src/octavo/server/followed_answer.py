"""Responses to requests that repeat the Idempotency-Key of an earlier request: they follow its answer."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from octavo.server.generation import deadline_exceeded
from octavo.server.http.budget import Holding
from octavo.server.http.disconnect import while_connected
from octavo.server.http.errors import ApiError, unavailable
from octavo.server.http.paced import PIECE_BYTES, PacedResponse
from octavo.server.http.sse import PING_SECONDS, Framing
from octavo.server.kept_answers import AnswerState, KeptAnswer
from octavo.server.key_limits import KeyedRequest
from octavo.server.state import ServerState

REPLAYED = {"idempotency-replayed": "true"}


def shared_receive(receive: Receive, kept: KeptAnswer) -> Receive:
    """Return `receive` for the request that computes the answer: while others follow it, it goes on."""

    async def receive_shared() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            await kept.until_unfollowed()
        return message

    return receive_shared


class Follower:
    """A request that follows an answer: an in-flight request of its API key. Owned by its task."""

    def __init__(self, state: ServerState, keyed: KeyedRequest, holding: Holding, deadline: float) -> None:
        """`deadline` is by time.monotonic()."""
        self._state = state
        self._keyed = keyed
        self._deadline = deadline
        self.holding = holding

    async def join(self, kept: KeptAnswer) -> None:
        """Raises 429 above the limits of the API key."""
        await self._keyed.enter()
        self._state.num_open += 1
        kept.join()

    def leave(self, kept: KeptAnswer) -> None:
        kept.leave()
        self._state.num_open -= 1
        self._keyed.leave()

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()


async def follow(
    kept: KeptAnswer,
    follower: Follower,
    receive: Receive,
    *,
    is_stream: bool,
    framing: Framing,
    headers: Mapping[str, str],
) -> Response | None:
    """Return the response with the answer, or None if there will be none and the caller must compute it."""
    with ExitStack() as stack:
        await follower.join(kept)
        stack.callback(follower.leave, kept)
        while not _can_respond(kept, is_stream=is_stream):
            try:
                async with asyncio.timeout(follower.seconds_left):
                    await while_connected(receive, kept.change())
            except TimeoutError as error:
                raise deadline_exceeded() from error
        if kept.pieces is None or _is_lost(kept) or (kept.state is AnswerState.RUNNING and not is_stream):
            return None
        if is_stream:
            stack.pop_all()  # the response leaves
            return FollowedStream(kept, follower, framing, headers)
        follower.holding.take(sum(map(len, kept.pieces)))
        return PacedResponse(b"".join(kept.pieces), headers={**REPLAYED, **headers})


def _can_respond(kept: KeptAnswer, *, is_stream: bool) -> bool:
    """Whether a response can be sent, a stream from its first byte and a body as a whole, or never can."""
    return kept.state is not AnswerState.RUNNING or kept.pieces is None or (is_stream and kept.has_begun)


class FollowedStream(Response):
    """Sends the events of an answer that another request computes or has computed.

    Their bytes are those of the kept answer, which are counted there.
    """

    def __init__(
        self, kept: KeptAnswer, follower: Follower, framing: Framing, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**framing.headers, **REPLAYED, **headers})
        del self.headers["content-length"]
        self._kept = kept
        self._follower = follower
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._pump(send))
        finally:
            self._follower.leave(self._kept)

    async def _pump(self, send: Send) -> None:
        kept, num_sent, failure = self._kept, 0, None
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while failure is None:
            if kept.pieces is None or _is_lost(kept):
                failure = _lost()
            elif num_sent < len(kept.pieces):
                pieces = _next_pieces(kept.pieces, num_sent)
                num_sent += len(pieces)
                await _write_paced(send, b"".join(pieces))
            elif kept.state is not AnswerState.RUNNING:
                break
            elif self._follower.seconds_left <= 0:
                failure = deadline_exceeded()
            else:
                await self._wait(send)
        if failure is not None:
            await _write(send, self._framing.failure(failure) + self._framing.done)
        await _write(send, b"", more_body=False)

    async def _wait(self, send: Send) -> None:
        """Wait for the next change or the deadline, and send a comment if there is none for some time."""
        try:
            async with asyncio.timeout(min(PING_SECONDS, self._follower.seconds_left)):
                await self._kept.change()
        except TimeoutError:
            await _write(send, self._framing.ping())


def _next_pieces(pieces: list[bytes], start: int) -> list[bytes]:
    """Return the pieces that are written next. Only these are copied, because a client may be slow."""
    num_bytes, stop = 0, start
    while stop < len(pieces) and num_bytes < PIECE_BYTES:
        num_bytes += len(pieces[stop])
        stop += 1
    return pieces[start:stop]


async def _write_paced(send: Send, body: bytes) -> None:
    for start in range(0, len(body), PIECE_BYTES):
        await _write(send, body[start : start + PIECE_BYTES])


async def _write(send: Send, body: bytes, *, more_body: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more_body})


def _is_lost(kept: KeptAnswer) -> bool:
    """Whether the answer will have no end, because its client has disconnected."""
    return kept.state is AnswerState.FAILED and not kept.has_end


def _lost() -> ApiError:
    return unavailable(
        "the rest of the answer was not kept for requests with the same Idempotency-Key: send the request"
        " again to compute it",
        code="answer_not_kept",
    )
