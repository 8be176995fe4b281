"""A minimal HTTP client for load tests: one request at a time per connection, parsed with httptools.

General-purpose clients need more processor time per chunk than the server that sends it, and hide arrival
times.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass

import httptools

from octavo.bench.serve.answer import MeasuredAnswer
from octavo.conformance.transport import HttpTransport

CONNECT_SECONDS = 30.0


class ConnectionLost(ConnectionError):
    """The connection ended before the response was complete."""


class LoadConnection(asyncio.Protocol):
    """A connection with at most one request in flight."""

    def __init__(self) -> None:
        self.is_open = True
        self._answer: MeasuredAnswer | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport

    async def ask(self, request: bytes, answer: MeasuredAnswer) -> None:
        """Send a request and return when its response is complete; raise ConnectionLost if it breaks off."""
        self._answer = answer
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    # -- called by asyncio and httptools ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"the server sent invalid HTTP: {error}")

    def eof_received(self) -> None:
        """End a response without a content length, which ends with its connection."""
        answer = self._answer
        if answer is not None and answer.status is not None and answer.is_done:
            self._now = time.perf_counter()
            self.on_message_complete()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(str(error or "the server closed the connection"))

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answer is not None:
            self._answer.feed(body, self._now)

    def on_message_complete(self) -> None:
        if self._answer is None:
            return
        self._answer.end(self._now)
        if not self._parser.should_keep_alive():
            self.close()
        self._answer = None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _lose(self, reason: str) -> None:
        self.close()
        self._answer = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionLost(reason))


@dataclass(frozen=True)
class ServerAddress:
    """A resolved and tested address, so that name resolution is not part of the measurement."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str  # as in the certificate

    @classmethod
    def of(cls, transport: HttpTransport) -> "ServerAddress":
        is_tls = transport.scheme == "https"
        name, port = _host_and_port(transport.address, 443 if is_tls else 80)
        # A name may have several addresses, and the server may listen on only one of them.
        with socket.create_connection((name, port), CONNECT_SECONDS) as found:
            host = str(found.getpeername()[0])
        return cls(host, port, ssl.create_default_context() if is_tls else None, name)

    async def connect(self) -> LoadConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            LoadConnection,
            self.host,
            self.port,
            ssl=self.tls,
            server_hostname=self.name if self.tls else None,
        )
        return connection


def _host_and_port(address: str, default: int) -> tuple[str, int]:
    """Split `host`, `host:port`, `[::1]` or `[::1]:port`."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest[1:] or default)
    host, _, port = address.partition(":")
    return host, int(port or default)


class Pool:
    """Idle connections for reuse. It grows to the largest number of requests in flight."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._idle: deque[LoadConnection] = deque()

    async def ask(self, request: bytes, answer: MeasuredAnswer) -> None:
        """Send a request and read its response. Its time includes that of a new connection."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                await self._ask_on(connection, request, answer)
                return
            except ConnectionLost:
                # The server may close an idle connection at any time. Retry if no response has started.
                if answer.status is not None:
                    raise
        await self._ask_on(await self._address.connect(), request, answer)

    async def _ask_on(self, connection: LoadConnection, request: bytes, answer: MeasuredAnswer) -> None:
        try:
            await connection.ask(request, answer)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
