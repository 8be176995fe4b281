"""Responses that are not streamed and may be large."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE_BYTES = 64 << 10


class PacedResponse(Response):
    """Sends JSON in pieces, each after the connection has taken the previous one.

    So the request stays open, and its bytes stay counted, until the client has read nearly all of the body.
    """

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        for start in range(0, len(body) or 1, PIECE_BYTES):
            piece = bytes(body[start : start + PIECE_BYTES])
            is_last = start + PIECE_BYTES >= len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
