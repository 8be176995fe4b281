"""Whole answers that may be large."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 64 << 10


class PacedResponse(Response):
    """JSON, piece by piece: the next one is handed on when the connection has taken the last. So the request
    is open, and what it holds is counted, until nearly all of the answer has been read."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body) or 1, PIECE_BYTES):
            piece = bytes(body[start : start + PIECE_BYTES])
            is_last = start + PIECE_BYTES >= len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
