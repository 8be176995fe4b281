"""Engines that die during streams: clients see a pause, and then the same tokens as without it."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence

from load.figure import Row, Start, run
from load.requests import completion
from load.wire import COMPLETIONS, Connection, ReceivedAnswer, ask
from patience import HANG_SECONDS
from server.process import Server, is_alive

FLAGS = ("--kv-memory", "16MiB")
MISSED_SECONDS = 2.0  # between two looks: /livez reports a hang 3 s before the engine is replaced


def measure_kills(start: Start, *, kills: int, streams: int, tokens: int) -> list[Row]:
    server = start(*FLAGS)
    num_equal, pauses = run(_kill(server, kills, streams, tokens))
    size = f"{kills} times under {streams} streams of {tokens} tokens"
    shown = ", ".join(f"{seconds:.2f}" for seconds in pauses)
    return [
        Row(
            "kill -9 of the engine",
            size,
            f"{num_equal} of {kills * streams} streams equal; next tokens after {shown} s",
            "all equal, token for token",
            num_equal == kills * streams,
        )
    ]


async def _kill(server: Server, kills: int, streams: int, tokens: int) -> tuple[int, list[float]]:
    plain = await _undisturbed(server, streams, tokens)
    num_equal, pauses = 0, []
    for number in range(kills):
        # Kill at a different time in each round: in prefill, early, late. If this process was paused, and all
        # streams have ended, begin again.
        while True:
            connections = await _begin(server, streams, tokens)
            await _until_reported(connections, number * streams * tokens // (kills + 1))
            if not _have_ended(connections):
                break
            await _num_equal(connections, plain)
        pauses.append(await _replaced(server, connections, signal.SIGKILL))
        num_equal += await _num_equal(connections, plain)
    return num_equal, pauses


async def _replaced(server: Server, connections: Sequence[Connection], number: int) -> float:
    """Return seconds from the signal to the first token of the next engine."""
    old = server.engine_pid
    assert old is not None
    os.kill(old, number)
    sent = time.perf_counter()
    async with asyncio.timeout(HANG_SECONDS):
        while server.engine_pid in (None, old):
            await asyncio.sleep(0.002)
    await _until_reported(connections, _num_events(connections) + 1)
    assert not is_alive(old)
    return time.perf_counter() - sent


def measure_stop(start: Start, *, streams: int, tokens: int) -> list[Row]:
    server = start(*FLAGS)
    num_equal, not_live, replaced = run(_stop(server, streams, tokens))
    size = f"under {streams} streams of {tokens} tokens"
    equal = Row(
        "SIGSTOP of the engine: streams", size, f"{num_equal} of {streams} equal", "all", num_equal == streams
    )
    return [
        Row(
            "SIGSTOP of the engine: seen",
            size,
            f"/livez 503 after {not_live:.1f} s",
            "5 s",
            not_live <= 5,
            is_tolerable=True,  # else `_stop` would have raised: it checks that this precedes the replacement
        ),
        Row(
            "SIGSTOP of the engine: replaced",
            size,
            f"after {replaced:.1f} s",
            "15 s",
            replaced <= 15,
            is_tolerable=True,
        ),
        equal,
    ]


async def _stop(server: Server, streams: int, tokens: int) -> tuple[int, float, float]:
    plain = await _undisturbed(server, streams, tokens)
    while True:
        connections = await _begin(server, streams, tokens)
        await asyncio.gather(*(connection.begun() for connection in connections))
        old = server.engine_pid
        assert old is not None
        os.kill(old, signal.SIGSTOP)
        sent = time.perf_counter()
        async with asyncio.timeout(HANG_SECONDS):
            not_live = await _seconds_to_not_live(server, old)
            while server.engine_pid == old or (await ask(server.port, "/readyz")).status != 200:
                await asyncio.sleep(0.02)
        replaced = time.perf_counter() - sent
        num_equal = await _num_equal(connections, plain)
        assert not is_alive(old)
        if not_live is not None:
            return num_equal, not_live, replaced
        assert num_equal == streams


async def _seconds_to_not_live(server: Server, stopped: int) -> float | None:
    """Return when /livez reported the hang; None if this process was paused meanwhile and has missed it."""
    began = looked = time.perf_counter()
    was_paused = False
    while (await ask(server.port, "/livez")).status == 200:
        now = time.perf_counter()
        was_paused, looked = was_paused or now - looked > MISSED_SECONDS, now
        if server.engine_pid != stopped:
            assert was_paused, "the engine was replaced before /livez reported the hang"
            return None
        await asyncio.sleep(0.02)
    return time.perf_counter() - began


async def _undisturbed(server: Server, streams: int, tokens: int) -> list[ReceivedAnswer]:
    return await asyncio.gather(
        *(_received(connection) for connection in await _begin(server, streams, tokens))
    )


async def _begin(server: Server, streams: int, tokens: int) -> list[Connection]:
    connections = [await Connection.open(server.port) for _ in range(streams)]
    for number, connection in enumerate(connections):
        connection.send(COMPLETIONS, completion(number, tokens, stream=True))
    return connections


async def _num_equal(connections: Sequence[Connection], plain: Sequence[ReceivedAnswer]) -> int:
    received = await asyncio.gather(*(_received(connection) for connection in connections))
    return sum(one == other for one, other in zip(received, plain, strict=True))


async def _received(connection: Connection) -> ReceivedAnswer:
    answer = await connection.done()
    connection.disconnect()
    return answer.received


def _have_ended(connections: Sequence[Connection]) -> bool:
    return all(one.answer is not None and one.answer.done_at is not None for one in connections)


def _num_events(connections: Sequence[Connection]) -> int:
    return sum(connection.answer.num_events for connection in connections if connection.answer)


async def _until_reported(connections: Sequence[Connection], num_events: int) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while _num_events(connections) < num_events and not _have_ended(connections):
            await asyncio.sleep(0.002)
