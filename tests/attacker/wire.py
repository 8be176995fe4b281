"""A client that sends any bytes, reads any number of responses, and can stop reading or disconnect."""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from data.json_types import Json

PING = b": ping\n\n"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of zero: close with a reset
SMALL_BUFFER = 4096  # bytes that the kernel buffers for a client that does not read


class Abandoned(Exception):
    """The attack is over and does not wait for the rest of this response."""


@dataclass
class Reply:
    """One response; grows while it is read."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False

    @property
    def json(self) -> Json:
        return json.loads(self.body)


class Client(asyncio.Protocol):
    """One connection. `replies` has one entry per response; the last may be incomplete."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.num_received = 0  # bytes
        self.num_content = 0  # bytes of bodies, without pings
        self.is_lost = False
        self._is_abandoned = False
        self.opened_at = time.monotonic()
        self._changed = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._parser = httptools.HttpResponseParser(self)

    @classmethod
    async def open(cls, port: int, *, buffers_little: bool = False) -> "Client":
        plain = socket.socket()
        plain.setblocking(False)
        if buffers_little:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(plain, ("127.0.0.1", port))
            _, client = await loop.create_connection(cls, sock=plain)
        except BaseException:
            plain.close()
            raise
        return client

    async def send(self, data: bytes) -> None:
        """Send, and wait until the kernel has most of it. Data for a closed connection is dropped."""
        if not self.is_lost:
            self._transport.write(data)
        await asyncio.sleep(0)  # so that a lost connection is noticed
        await self._may_write.wait()

    async def until(self, condition: Callable[["Client"], bool]) -> bool:
        """Wait for the condition. Returns False if the connection ends first."""
        while not condition(self):
            if self._is_abandoned:
                raise Abandoned
            if self.is_lost:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def replied(self, count: int = 1) -> bool:
        """Wait for complete responses. Returns False if the connection ends first."""
        return await self.until(lambda client: client.num_complete >= count)

    @property
    def num_complete(self) -> int:
        return sum(reply.is_complete for reply in self.replies)

    def stop_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def disconnect(self, *, reset: bool = False) -> None:
        if reset:
            with contextlib.suppress(OSError):
                connection = self._transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    def abandon(self) -> None:
        """Disconnect, and raise `Abandoned` where the response is awaited."""
        self._is_abandoned = True
        self.disconnect()

    # -- callbacks of asyncio and httptools ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.num_received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._changed.set()
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def on_message_begin(self) -> None:
        self.replies.append(Reply())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.replies[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.replies[-1].status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.replies[-1].body += body
        self.num_content += 0 if body == PING else len(body)

    def on_message_complete(self) -> None:
        self.replies[-1].is_complete = True


def head(path: str, key: str | None, *headers: str, method: str = "POST") -> bytes:
    """Return a request line and headers, without the empty line at the end."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "".join(f"{line}\r\n" for line in (*lines, *headers)).encode("latin-1")


def post(path: str, key: str | None, body: Json) -> bytes:
    """Return a complete request. A body of bytes is sent as it is."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind, length = "Content-Type: application/json", f"Content-Length: {len(content)}"
    return head(path, key, kind, length) + b"\r\n" + content


def get(path: str, key: str | None) -> bytes:
    return head(path, key, method="GET") + b"\r\n"
