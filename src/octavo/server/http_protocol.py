"""uvicorn's HTTP/1.1, with bounds on the head of a request: how large it is, and how long it takes."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: 116\r\nconnection: close\r\n\r\n"
    b'{"error":{"message":"the headers are too large","type":"invalid_request_error",'
    b'"param":null,"code":"head_too_large"}}'
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Counts what arrives between the first byte of a request and the end of its headers."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._in_body = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._cut)
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_body and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self._cut()

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._head_done()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_done()
        super().connection_lost(exc)

    def _head_done(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cut(self) -> None:
        self._head_done()
        if not self.transport.is_closing():
            self.transport.close()
