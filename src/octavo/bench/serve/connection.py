"""HTTP for load: one request after the other on a connection, read by the parser that servers use.

Clients made for people cost more for each chunk than the server that sent it, and hide when it came.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass

import httptools

from octavo.bench.serve.answer import Answer
from octavo.conformance.transport import HttpTransport

CONNECT_SECONDS = 30.0


class Lost(ConnectionError):
    """The connection ended before the answer did."""


class Connection(asyncio.Protocol):
    """Has one answer under way, or none."""

    def __init__(self) -> None:
        self.is_open = True
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Returns when the answer has ended; raises Lost if it never will."""
        self._answer = answer
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    # -- asyncio and httptools call these --------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"the answer is not HTTP: {error}")

    def eof_received(self) -> None:
        """An answer without a length ends with its connection."""
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
            self._answer.take(body, self._now)

    def on_message_complete(self) -> None:
        if self._answer is None:
            return
        self._answer.end(self._now)
        if not self._parser.should_keep_alive():
            self.close()
        self._answer = None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _lose(self, why: str) -> None:
        self.close()
        self._answer = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(Lost(why))


@dataclass(frozen=True)
class Address:
    """Looked up once, and tried: a name server must not be part of what is measured."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str  # as the certificate has it

    @classmethod
    def of(cls, transport: HttpTransport) -> "Address":
        is_tls = transport.scheme == "https"
        name, port = _host_and_port(transport.address, 443 if is_tls else 80)
        # A name may have several addresses, and the server listen at one of them.
        with socket.create_connection((name, port), CONNECT_SECONDS) as found:
            host = str(found.getpeername()[0])
        return cls(host, port, ssl.create_default_context() if is_tls else None, name)

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self.host, self.port, ssl=self.tls, server_hostname=self.name if self.tls else None
        )
        return connection


def _host_and_port(address: str, default: int) -> tuple[str, int]:
    """Of `host`, `host:port`, `[::1]` or `[::1]:port`."""
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, int(rest[1:] or default)
    host, _, port = address.partition(":")
    return host, int(port or default)


class Pool:
    """Connections that wait for a request. Grows as far as requests are under way at once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[Connection] = deque()

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Connecting counts as part of the answer, as it does for people."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                await self._ask_on(connection, request, answer)
                return
            except Lost:
                # The server may close what is idle at any time, also while we write. Nothing came: ask again.
                if answer.status is not None:
                    raise
        await self._ask_on(await self._address.connect(), request, answer)

    async def _ask_on(self, connection: Connection, request: bytes, answer: Answer) -> None:
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
