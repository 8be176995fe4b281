"""Connections that cost too much: too many of them, silent ones, and those that read nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from octavo.server.http.connection import PROBES_ONLY, BoundedHttpProtocol
from octavo.server.http.room import MOST_PROBES, Room
from octavo.server.lifecycle import HttpServer
from patience import HANG_SECONDS

LARGE = 8 << 20  # bytes: more than the kernel keeps for a client with a small buffer


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
    silent_seconds: float = 60, *, most_connections: int = 10, stalled_seconds: float = 60
) -> AsyncIterator[Bench]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        room: Room[BoundedHttpProtocol] = Room(most_connections, BoundedHttpProtocol.refuse_busy)
        make = partial(BoundedHttpProtocol, room=room, stalled_seconds=stalled_seconds)
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


def test_who_asks_for_nothing_makes_way_for_a_new_connection() -> None:
    async def test() -> None:
        async with serving(most_connections=2) as bench:
            first, second = await bench.connect(), await bench.connect()
            await bench.until(lambda: bench.num_connections == 2)
            third = await bench.connect()
            told = await first[0].read(-1)
            assert told.startswith(b"HTTP/1.1 503")
            assert b"too many connections" in told
            for reader, writer in (third, second):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert (await reader.read(12)) == b"HTTP/1.1 200"

    run(test)


def test_when_all_are_busy_there_is_room_for_probes_and_nobody_else() -> None:
    async def test() -> None:
        async with serving(most_connections=2) as bench:
            busy = [await bench.connect() for _ in range(2)]
            for reader, writer in busy:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"x-probes-only: False" in await reader.readuntil(b"\r\n\r\n")
            probes = [await bench.connect() for _ in range(MOST_PROBES)]
            await bench.until(lambda: bench.num_connections == 2 + MOST_PROBES)
            reader, _ = await bench.connect()
            assert b"too many connections" in await reader.read(-1)
            for reader, writer in probes[:2]:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"x-probes-only: True" in await reader.readuntil(b"\r\n\r\n")
                await reader.read(-1)
            # Who wants nothing does not stay for long.
            for reader, _ in probes[2:]:
                await reader.read(-1)
            assert bench.num_connections == 2

    run(test)


def test_who_never_says_anything_is_cut_off() -> None:
    async def test() -> None:
        async with serving(silent_seconds=0.1) as bench:
            reader, _ = await bench.connect()
            assert await reader.read(-1) == b""

    run(test)


def test_who_reads_nothing_is_cut_off_and_who_reads_slowly_is_not() -> None:
    async def test() -> None:
        async with serving(stalled_seconds=2.0) as bench:
            stalled, slow = await bench.connect(), await bench.connect()
            for reader, writer in (stalled, slow):
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await bench.until(lambda: bench.num_connections == 2)
            slow[0]._transport.resume_reading()  # type: ignore[attr-defined]
            told = b""
            while bench.num_connections == 2:  # until the stalled one is gone
                told += await slow[0].read(1 << 14)
                await asyncio.sleep(0.02)
            for _ in range(10):
                told += await slow[0].read(1 << 14)
                await asyncio.sleep(0.02)
            assert bench.num_connections == 1, "it alone"
            told += await slow[0].read(-1)
            assert len(told.partition(b"\r\n\r\n")[2]) == LARGE

    run(test)
