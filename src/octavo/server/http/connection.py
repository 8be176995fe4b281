"""uvicorn's HTTP/1.1 protocol with limits against misbehaving clients.

The limits apply to large or slow headers, bodies that are mostly framing or continue after the response,
connections that send nothing, and responses that are not read.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import struct
import termios
import time
from collections import deque
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.http.connection_limit import ConnectionLimit
from octavo.server.http.connection_owner import ConnectionOwner

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
HEAD_TOO_LARGE = "the headers are too large"
# Bytes of a chunked body that are not its content. A chunk with one byte of content has five more.
MAX_FRAMING_BYTES = 64 << 10
MAX_FRAMING_RATIO = 16
PROBE_SECONDS = 2.0  # lifetime of a connection that is admitted for a probe only
# For the rest of a body after the response. Closing at once could make the client lose the response.
MAX_DISCARDED_BYTES = 1 << 20
DISCARD_SECONDS = 5.0

ARRIVAL = "octavo.arrival"
OWNER = "octavo.connection_owner"
PROBES_ONLY = "octavo.probes_only"


class BoundedHttpProtocol(HttpToolsProtocol):
    """Counts the bytes of the headers, and those of a body that arrive after the response and are discarded.
    A request is in one phase at a time, so one timer is enough. A second timer checks that the client reads.

    In `scope`, the application finds the time of the request's first byte (`ARRIVAL`), whether the connection
    is admitted for probes only (`PROBES_ONLY`), and which API key the connection counts for (`OWNER`).
    """

    def __init__(
        self,
        *arguments: Any,
        connection_limit: "ConnectionLimit[BoundedHttpProtocol]",
        stalled_seconds: float,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        self._connection_limit = connection_limit
        self._probes_only = False
        self._owner = ConnectionOwner()
        self._stalled_seconds = stalled_seconds
        self._unread = 0  # bytes at the last check
        self._stall_timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._num_bytes = 0  # received of the headers, or of a discarded body
        self._num_head = 0  # bytes of the URL and the complete headers of this request
        self._num_framing = 0  # received bytes of a body that are not its content
        self._num_content = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: deque[RequestResponseCycle] = deque()  # the first ones may be answered already

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._connection_limit.admit(self, len(self.connections)):
            if not self._connection_limit.admits_probes(len(self.connections)):
                self.reject_busy()
                return
            self._probes_only = True
            self._start_timer(PROBE_SECONDS)
        # Bytes stay in this buffer only while the kernel's is full: then the client does not read.
        transport.set_write_buffer_limits(high=1, low=0)  # with high=0, TLS would never write
        # uvicorn applies this timeout only after a response, not before the first request.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        if self._in_body:
            self._num_framing += len(data)
        if not self._in_body:
            self._start_timer(HEAD_SECONDS)
            self._num_bytes += len(data)
        elif self.cycle.response_complete:
            self._num_bytes += len(data)
            if self._num_bytes > MAX_DISCARDED_BYTES:
                self._close()
                return
        super().data_received(data)
        if not self._in_body and self._num_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._reject(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE)
        elif self._num_framing > MAX_FRAMING_BYTES + MAX_FRAMING_RATIO * self._num_content:
            self._reject(HTTPStatus.BAD_REQUEST, "the body is mostly framing: chunk extensions or trailers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_head = 0
        self.scope[ARRIVAL] = time.monotonic()  # type: ignore[literal-required]
        self.scope[PROBES_ONLY] = self._probes_only  # type: ignore[literal-required]
        self.scope[OWNER] = self._owner  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # a header in the body is a trailer: unchecked, so ignored
            self._count_head(len(name) + len(value) + len(b": \r\n"))
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._num_framing -= len(body)
        self._num_content += len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # raises if the URL is invalid: then there is no request
        self._connection_limit.note_busy(self)
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(self.cycle)
        self._in_body = True
        self._phase_done()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._num_framing = self._num_content = 0
        self._phase_done()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:
            return  # the next pipelined request has started
        if self._probes_only:
            self._close()
        elif self._in_body:
            self._start_timer(DISCARD_SECONDS)
        else:
            self._note_if_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.close()
        self._connection_limit.note_busy(self)
        self._phase_done()
        self._stop_stall_timer()
        super().connection_lost(exc)
        # uvicorn notifies only the last request, which need not be the one that is being answered.
        for cycle in self._unanswered:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        self._unanswered.clear()

    def shutdown(self) -> None:
        self._owner.close()  # so that an error that is held back is sent now
        super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()
        self._note_if_idle()

    def reject_busy(self) -> None:
        """Close this connection because there are too many. `ConnectionLimit` calls it."""
        if self.transport.is_closing():
            return
        if self._timer is None and self._num_bytes == 0 and self.cycle is not None:
            self._close()  # idle: a server may close it without a response
            return
        self._reject(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", "service_unavailable_error")

    def send_400_response(self, msg: str) -> None:
        """Replace uvicorn's response to invalid HTTP by one with a JSON error."""
        if self._num_head > MAX_HEAD_BYTES:
            self._reject(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE)
        else:
            self._reject(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request")

    def _count_head(self, num_bytes: int) -> None:
        """Count before the request exists: all of the headers may arrive at once, together with the body."""
        self._num_head += num_bytes
        if self._num_head > MAX_HEAD_BYTES:
            raise ValueError(HEAD_TOO_LARGE)  # stops the parser, which leads to `send_400_response`

    def _reject(self, status: HTTPStatus, message: str, kind: str = "invalid_request_error") -> None:
        if self._has_pending_response():
            self._close()
            return
        error = {"message": message, "type": kind, "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._close()

    def _has_pending_response(self) -> bool:
        """Whether the client would take an error sent now for (part of) another response."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self.cycle.response_started or bool(self.pipeline) or not self._in_body

    def _start_timer(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._close)

    def _phase_done(self) -> None:
        self._num_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_stall_timer(self) -> None:
        """Also runs while the connection is closing, which waits until the last byte is read."""
        self._unread = self._num_unread()
        self._stall_timer = self.loop.call_later(self._stalled_seconds, self._check_stalled)

    def _check_stalled(self) -> None:
        if self._num_unread() < self._unread:
            self._start_stall_timer()
            return
        logger.warning(
            "connection closed: the client read nothing of its response for %g s", self._stalled_seconds
        )
        self.transport.abort()

    def _num_unread(self) -> int:
        """Return the bytes that the client has not read, including those in the kernel's send buffer, which
        takes new bytes only from time to time."""
        num_buffered = self.transport.get_write_buffer_size()
        with contextlib.suppress(OSError, AttributeError):  # not every system reports it
            answer = fcntl.ioctl(
                self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4
            )
            return num_buffered + int(struct.unpack("i", answer)[0])
        return num_buffered

    def _note_if_idle(self) -> None:
        """Mark the connection as idle if its response has been sent completely."""
        is_answered = self.cycle is not None and self.cycle.response_complete and not self._in_body
        if is_answered and self._stall_timer is None and not self.transport.is_closing():
            self._connection_limit.note_idle(self)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _close(self) -> None:
        self._phase_done()
        if not self.transport.is_closing():
            self.transport.close()
