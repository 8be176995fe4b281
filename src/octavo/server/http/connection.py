"""uvicorn's HTTP/1.1, with bounds on what nobody asked for: heads that are large or slow, bodies that are
mostly framing or go on after the answer, connections that never say anything, answers that are not read."""

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

from octavo.server.http.room import Room

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
# Of a body in chunks: what is not its content. The smallest chunk has five bytes more than the one in it.
MAX_FRAMING_BYTES = 64 << 10
MAX_FRAMING_RATIO = 16
PROBE_SECONDS = 2.0  # for a connection that is here for a probe only
# Of a body whose request has had its answer. To close at once could cost the client that answer.
MAX_LEFT_BYTES = 1 << 20
LEFT_SECONDS = 5.0

ARRIVAL = "octavo.arrival"
PROBES_ONLY = "octavo.probes_only"


class BoundedHttpProtocol(HttpToolsProtocol):
    """Counts what arrives between the first byte of a request and the end of its headers, and what arrives
    of a body that will not be read. One timer at a time is enough: a request is in one phase. Another timer
    watches that what we write is read.

    For the application, `scope` has the time when the first byte of a request came (`ARRIVAL`), and whether
    the connection has room for a probe only (`PROBES_ONLY`).
    """

    def __init__(
        self, *arguments: Any, room: "Room[BoundedHttpProtocol]", stalled_seconds: float, **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self._room = room
        self._probes_only = False
        self._stalled_seconds = stalled_seconds
        self._unread = 0  # bytes, when we last looked
        self._stall_timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._num_bytes = 0  # of a head, or of what is left
        self._num_framing = 0  # bytes of a body as they came, without those that are its content
        self._num_content = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: deque[RequestResponseCycle] = deque()  # but for the first ones

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._room.admit(self, len(self.connections)):
            if not self._room.takes_probes(len(self.connections)):
                self.refuse_busy()
                return
            self._probes_only = True
            self._start_timer(PROBE_SECONDS)
        # Nothing is kept here that the kernel does not take: so whatever is kept is not being read.
        transport.set_write_buffer_limits(high=1, low=0)  # not 0, at which TLS would never write
        # As after an answer: uvicorn leaves those alone who have not asked anything yet.
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
            if self._num_bytes > MAX_LEFT_BYTES:
                self._cut()
                return
        super().data_received(data)
        if not self._in_body and self._num_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too large")
        elif self._num_framing > MAX_FRAMING_BYTES + MAX_FRAMING_RATIO * self._num_content:
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is mostly framing: chunk extensions, or trailers")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ARRIVAL] = time.monotonic()  # type: ignore[literal-required]
        self.scope[PROBES_ONLY] = self._probes_only  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # there it is a trailer, which nobody has checked and nobody may believe
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._num_framing -= len(body)
        self._num_content += len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # raises if the URL is none: then there is no request
        self._room.note_busy(self)
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
            return  # the next one's turn
        if self._probes_only:
            self._cut()
        elif self._in_body:
            self._start_timer(LEFT_SECONDS)
        else:
            self._note_if_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.note_busy(self)
        self._phase_done()
        self._is_read()
        super().connection_lost(exc)
        # uvicorn tells the last request only, and the one that is being answered may be another.
        for cycle in self._unanswered:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        self._unanswered.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()
        self._note_if_idle()

    def refuse_busy(self) -> None:
        """For `Room`: there are too many connections."""
        if self.transport.is_closing():
            return
        if self._timer is None and self._num_bytes == 0 and self.cycle is not None:
            self._cut()  # as any server may close a connection that is idle
            return
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", "service_unavailable_error")

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to what is no HTTP, in our words."""
        self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request")

    def _refuse(self, status: HTTPStatus, message: str, kind: str = "invalid_request_error") -> None:
        if self._owes_an_answer():
            self._cut()
            return
        error = {"message": message, "type": kind, "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._cut()

    def _owes_an_answer(self) -> bool:
        """To another request, or one that has begun: words of ours would be taken for a part of it."""
        if self.cycle is None or self.cycle.response_complete:
            return False
        return self.cycle.response_started or bool(self.pipeline) or not self._in_body

    def _start_timer(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._cut)

    def _phase_done(self) -> None:
        self._num_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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

    def _note_if_idle(self) -> None:
        """It has had its answer, to the last byte."""
        is_answered = self.cycle is not None and self.cycle.response_complete and not self._in_body
        if is_answered and self._stall_timer is None and not self.transport.is_closing():
            self._room.note_idle(self)

    def _is_read(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _cut(self) -> None:
        self._phase_done()
        if not self.transport.is_closing():
            self.transport.close()
