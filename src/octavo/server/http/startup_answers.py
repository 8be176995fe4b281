"""Answers for those who ask before the application is imported. Needs nothing but the standard library."""

import asyncio
import contextlib
import json
import socket
from typing import Self

MAX_HEAD_BYTES = 64 << 10
PATIENCE = 2.0  # seconds for a client to say what it wants

LOADING = {
    "error": {
        "message": "the server is starting",
        "type": "service_unavailable_error",
        "param": None,
        "code": "loading",
    }
}


class EarlyAnswers:
    """Listens beside the application's own socket, which is the same one: nobody is refused in between."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @classmethod
    async def start(cls, listener: socket.socket) -> Self:
        return cls(await asyncio.start_server(_answer, sock=listener.dup(), limit=MAX_HEAD_BYTES))

    def close(self) -> None:
        """Those who are being answered get their answer."""
        self._server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(head.split(b" ", 2)[1]))
            writer.write_eof()
            # To close on a client that is still sending would cut off what it was told.
            while await reader.read(MAX_HEAD_BYTES):
                pass
    writer.close()


def _response(path: bytes) -> bytes:
    status, content = "503 Service Unavailable", LOADING
    if path == b"/livez":
        status, content = "200 OK", {"status": "live"}  # type: ignore[dict-item]
    elif path in (b"/readyz", b"/healthz", b"/health"):
        content = {"status": "starting", "phase": "importing"}  # type: ignore[dict-item]
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "retry-after: 1\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
