"""Responses to requests that repeat the Idempotency-Key of an earlier request: they follow its answer."""

import asyncio

from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from octavo.server.http.budget import Holding
from octavo.server.http.disconnect import while_connected
from octavo.server.http.errors import ApiError, unavailable
from octavo.server.http.paced import PIECE_BYTES, PacedResponse
from octavo.server.http.sse import DONE, HEADERS, PING, PING_SECONDS, PING_WITH_IDS, error_event
from octavo.server.kept_answers import AnswerState, KeptAnswer

REPLAYED = {"idempotency-replayed": "true"}


def shared_receive(receive: Receive, kept: KeptAnswer) -> Receive:
    """Return `receive` for the request that computes the answer: while others follow it, it goes on."""

    async def receive_shared() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            await kept.until_unfollowed()
        return message

    return receive_shared


async def follow(kept: KeptAnswer, request: Request, *, is_stream: bool, has_ids: bool) -> Response | None:
    """Return the response with the answer, or None if there will be none and the caller must compute it."""
    holding: Holding = request.state.holding
    kept.join()
    try:
        await while_connected(request.receive, _until_begun(kept, is_stream=is_stream))
        if kept.pieces is None or _is_lost(kept) or (kept.state is AnswerState.RUNNING and not is_stream):
            return None
        if is_stream:
            kept.join()  # the response leaves
            return FollowedStream(kept, holding, PING_WITH_IDS if has_ids else PING)
        holding.take(sum(map(len, kept.pieces)))
        return PacedResponse(b"".join(kept.pieces), headers=REPLAYED)
    finally:
        kept.leave()


async def _until_begun(kept: KeptAnswer, *, is_stream: bool) -> None:
    """Wait until a response can be sent: with a stream's first byte, or else with the whole body."""
    while (
        kept.state is AnswerState.RUNNING and kept.pieces is not None and not (is_stream and kept.has_begun)
    ):
        await kept.change()


class FollowedStream(Response):
    """Sends the events of an answer that another request computes or has computed."""

    def __init__(self, kept: KeptAnswer, holding: Holding, ping: bytes) -> None:
        super().__init__(headers=HEADERS | REPLAYED)
        del self.headers["content-length"]
        self._kept = kept
        self._holding = holding
        self._ping = ping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._pump(send))
        finally:
            self._kept.leave()

    async def _pump(self, send: Send) -> None:
        kept, num_sent = self._kept, 0
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while True:
            is_last, pieces = kept.state is not AnswerState.RUNNING, kept.pieces
            if pieces is None or _is_lost(kept):
                pieces, num_sent, is_last = [error_event(_lost()) + DONE], 0, True
            body = b"".join(pieces[num_sent:])
            num_sent = len(pieces)
            self._holding.take(len(body))
            for start in range(0, len(body), PIECE_BYTES):
                await _write(send, body[start : start + PIECE_BYTES])
            if is_last:
                await _write(send, b"", more_body=False)
                return
            if kept.pieces is pieces and len(pieces) == num_sent and kept.state is AnswerState.RUNNING:
                await self._wait(send)

    async def _wait(self, send: Send) -> None:
        """Wait for the next change, and send a comment if there is none for some time."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self._kept.change()
        except TimeoutError:
            await _write(send, self._ping)


async def _write(send: Send, body: bytes, *, more_body: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more_body})


def _is_lost(kept: KeptAnswer) -> bool:
    """Whether the answer will have no end, because its client has disconnected."""
    return kept.state is AnswerState.FAILED and not (kept.pieces and kept.pieces[-1].endswith(DONE))


def _lost() -> ApiError:
    return unavailable(
        "the rest of the answer was not kept for requests with the same Idempotency-Key: send the request"
        " again to compute it",
        code="answer_not_kept",
    )
