"""uvicorn's HTTP/1.1, with bounds on a connection: its head, its silence, what it leaves unread."""

import asyncio
import contextlib
import fcntl
import json
import logging
import struct
import termios
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0


class BoundedHttpProtocol(HttpToolsProtocol):
    """Counts what arrives between the first byte of a request and the end of its headers, and watches
    that what we write is read."""

    def __init__(
        self, *arguments: Any, most_connections: int, stalled_seconds: float, **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self._most_connections = most_connections
        self._stalled_seconds = stalled_seconds
        self._unread = 0  # bytes, when we last looked
        self._stall_timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", "service_unavailable_error")
            return
        # Nothing is kept here that the kernel does not take: so whatever is kept is not being read.
        transport.set_write_buffer_limits(high=1, low=0)  # not 0, at which TLS would never write
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._cut)
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_body and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large")

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._head_done()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_done()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, in our words."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request")

    def _refuse(self, status: HTTPStatus, message: str, kind: str = "invalid_request_error") -> None:
        error = {"message": message, "type": kind, "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._cut()

    def _head_done(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expect_reading(self) -> None:
        """Also while the connection is closing, which waits for the last byte to be read."""
        self._unread = self._num_unread()
        self._stall_timer = self.loop.call_later(self._stalled_seconds, self._check_reading)

    def _check_reading(self) -> None:
        if self._num_unread() < self._unread:
            self._expect_reading()
            return
        logger.warning("a client that does not read its answer is cut off")
        self.transport.abort()

    def _num_unread(self) -> int:
        """Bytes, those that the kernel keeps for the client included: it asks for more only now and then."""
        kept_here = self.transport.get_write_buffer_size()
        with contextlib.suppress(OSError, AttributeError):  # where the kernel does not tell
            answer = fcntl.ioctl(
                self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4
            )
            return kept_here + int(struct.unpack("i", answer)[0])
        return kept_here

    def _is_read(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _cut(self) -> None:
        self._head_done()
        if not self.transport.is_closing():
            self.transport.close()
