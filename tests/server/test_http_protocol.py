"""Limits on connections: their number, silent connections and stalled readers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from octavo.server.http.connection import PROBES_ONLY, BoundedHttpProtocol
from octavo.server.http.connection_limit import MAX_PROBES, ConnectionLimit
from octavo.server.lifecycle import HttpServer
from patience import HANG_SECONDS

LARGE = 8 << 20  # bytes: more than the kernel buffers for a client with a small receive buffer


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [
        (b"content-length", str(LARGE).encode()),
        (b"connection", b"close"),
        (b"x-probes-only", str(scope[PROBES_ONLY]).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * LARGE})


class Bench:
    def __init__(self, server: HttpServer, port: int) -> None:
        self._server = server
        self._port = port

    @property
    def num_connections(self) -> int:
        return len(self._server.server_state.connections)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self._port))
        return await asyncio.open_connection(sock=plain, limit=1 << 16)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    silent_seconds: float = 60, *, max_connections: int = 10, stalled_seconds: float = 60
) -> AsyncIterator[Bench]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection_limit: ConnectionLimit[BoundedHttpProtocol] = ConnectionLimit(
            max_connections, BoundedHttpProtocol.reject_busy
        )
        make = partial(
            BoundedHttpProtocol, connection_limit=connection_limit, stalled_seconds=stalled_seconds
        )
        config = uvicorn.Config(app, http=make, log_config=None, timeout_graceful_shutdown=0)  # type: ignore[arg-type]
        config.timeout_keep_alive = silent_seconds  # type: ignore[assignment]
        server = HttpServer(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield Bench(server, listener.getsockname()[1])
        finally:
            server.should_exit = server.force_exit = True
            await task


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), HANG_SECONDS)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


def test_a_new_connection_replaces_an_idle_one() -> None:
    async def test() -> None:
        async with serving(max_connections=2) as bench:
            first, second = await bench.connect(), await bench.connect()
            await bench.until(lambda: bench.num_connections == 2)
            third = await bench.connect()
            received = await first[0].read(-1)
            assert received.startswith(b"HTTP/1.1 503")
            assert b"too many connections" in received
            for reader, writer in (third, second):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert (await reader.read(12)) == b"HTTP/1.1 200"

    run(test)


def test_only_probes_are_admitted_when_all_connections_are_busy() -> None:
    async def test() -> None:
        async with serving(max_connections=2) as bench:
            busy = [await bench.connect() for _ in range(2)]
            for reader, writer in busy:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"x-probes-only: False" in await reader.readuntil(b"\r\n\r\n")
            probes = [await bench.connect() for _ in range(MAX_PROBES)]
            await bench.until(lambda: bench.num_connections == 2 + MAX_PROBES)
            reader, _ = await bench.connect()
            assert b"too many connections" in await reader.read(-1)
            for reader, writer in probes[:2]:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"x-probes-only: True" in await reader.readuntil(b"\r\n\r\n")
                await reader.read(-1)
            # Connections that send nothing are closed soon.
            for reader, _ in probes[2:]:
                await reader.read(-1)
            assert bench.num_connections == 2

    run(test)


def test_a_silent_connection_is_cut_off() -> None:
    async def test() -> None:
        async with serving(silent_seconds=0.1) as bench:
            reader, _ = await bench.connect()
            assert await reader.read(-1) == b""

    run(test)


def test_a_stalled_reader_is_cut_off_and_a_slow_reader_is_not() -> None:
    async def test() -> None:
        async with serving(stalled_seconds=2.0) as bench:
            stalled, slow = await bench.connect(), await bench.connect()
            for reader, writer in (stalled, slow):
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await bench.until(lambda: bench.num_connections == 2)
            slow[0]._transport.resume_reading()  # type: ignore[attr-defined]
            received = b""
            while bench.num_connections == 2:  # until the stalled connection is closed
                received += await slow[0].read(1 << 14)
                await asyncio.sleep(0.02)
            for _ in range(10):
                received += await slow[0].read(1 << 14)
                await asyncio.sleep(0.02)
            assert bench.num_connections == 1, "only the stalled connection may be closed"
            received += await slow[0].read(-1)
            assert len(received.partition(b"\r\n\r\n")[2]) == LARGE

    run(test)
