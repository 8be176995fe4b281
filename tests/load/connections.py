"""Thousands of idle connections, and clients that do not read: active clients are not affected."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from load.figure import Row, Start, allow_files, few_files, percentile, run
from load.requests import completion
from load.wire import COMPLETIONS, Connection, Gauges, ask
from patience import HANG_SECONDS
from server.process import Server, processor_seconds

OPENED_AT_ONCE = 100
TOKENS = 16


def measure(start: Start, *, idle: int, active: int, requests: int, rounds: int) -> list[Row]:
    """In each round, send `requests` requests with idle connections open, and as many without."""
    allow_files(idle + active + 100)
    with few_files(1024):  # the default soft limit of many systems
        server = start("--kv-memory", "16MiB")
    plain, beside, num_refused = run(_measure(server, idle, active, requests, rounds))
    ratio = percentile(beside.first_tokens, 99) / percentile(plain.first_tokens, 99)
    work = beside.processor_seconds / plain.processor_seconds
    size = f"{idle} idle, {active} active"
    return [
        Row("idle connections", size, f"{num_refused} of {rounds * idle} refused", "none", num_refused == 0),
        Row(
            "first token beside them",
            f"{size}, {len(beside.first_tokens)} requests",
            f"p99 {1e3 * percentile(beside.first_tokens, 99):.0f} ms, {ratio:.2f}x of without; "
            f"{work:.2f}x the processor time",
            "p99 at most 1.5x",
            ratio <= 1.5,
            is_tolerable=work <= 2 * 1.5,
        ),
    ]


@dataclass
class RequestTimes:
    """Times of the requests of all rounds."""

    first_tokens: list[float] = field(default_factory=list)  # seconds, per request
    processor_seconds: float = 0.0  # of the front end, for all requests


async def _measure(
    server: Server, idle: int, active: int, requests: int, rounds: int
) -> tuple[RequestTimes, RequestTimes, int]:
    await _ask(server, active, 2 * active, RequestTimes())  # warm-up
    plain, beside = RequestTimes(), RequestTimes()
    num_refused = 0
    for number in range(rounds):
        # Alternate the order, so that drift affects both measurements equally.
        if number % 2:
            await _ask(server, active, requests, plain)
        connections, refused = await _open(server, idle)
        await _ask(server, active, requests, beside)
        num_refused += refused + await _close(connections)
        if not number % 2:
            await _ask(server, active, requests, plain)
    return plain, beside, num_refused


async def _ask(server: Server, active: int, requests: int, asked: RequestTimes) -> None:
    before = processor_seconds(server.process.pid)
    asked.first_tokens += await _first_tokens(server, active, requests)
    asked.processor_seconds += processor_seconds(server.process.pid) - before


async def _open(server: Server, number: int) -> tuple[list[Connection], int]:
    """Open connections. Every second one sends a request before it becomes idle."""
    connections: list[Connection] = []
    refused = 0

    async def one(is_used: bool) -> None:
        nonlocal refused
        try:
            connection = await Connection.open(server.port)
            connections.append(connection)
            if is_used:
                connection.send("/livez")
                await connection.done()
        except OSError:
            refused += 1

    for first in range(0, number, OPENED_AT_ONCE):
        await asyncio.gather(*(one(n % 2 == 0) for n in range(first, min(first + OPENED_AT_ONCE, number))))
    return connections, refused


async def _close(connections: Sequence[Connection]) -> int:
    """Close the connections and return how many of them no longer worked."""
    refused = 0
    for connection in connections:
        try:
            connection.send("/livez")
            refused += (await connection.done()).status != 200
        except OSError:
            refused += 1
        connection.disconnect()
    return refused


async def _first_tokens(server: Server, active: int, requests: int) -> list[float]:
    """Return seconds to the first token, with `active` concurrent requests at all times."""
    numbers = iter(range(requests))
    seconds: list[float] = []

    async def client() -> None:
        for number in numbers:
            answer = await ask(server.port, COMPLETIONS, completion(number, TOKENS, stream=True))
            assert answer.status == 200, answer.body
            seconds.append(answer.seconds_to_first)

    await asyncio.gather(*(client() for _ in range(active)))
    return seconds


def measure_slow_readers(
    start: Start, *, slow: int, neighbours: int, stalled_seconds: float, tokens: int
) -> list[Row]:
    """Clients that request large answers and read nothing, next to others."""
    server = start("--kv-memory", "64MiB", "--stalled-timeout", str(stalled_seconds), "--max-running", "64")
    num_equal, num_cut, seconds, grown = run(_stall(server, slow, neighbours, tokens))
    size = f"{slow} slow, {neighbours} others"
    return [
        Row("slow readers: others", size, f"{num_equal} equal to alone", "all", num_equal == neighbours),
        Row(
            "slow readers: cut",
            f"{slow} that never read",
            f"{num_cut} cut, the last after {seconds:.1f} s",
            f"all; {stalled_seconds:g} s are allowed",
            num_cut == slow,
        ),
        Row(
            "slow readers: memory",
            f"{slow} x {SLOW_PROMPTS * SLOW_N * tokens} tokens",
            f"{grown / 2**20 / slow:.1f} MiB each",
            "at most 16 MiB each",
            grown <= slow * 16 * 2**20,
        ),
    ]


SLOW_PROMPTS, SLOW_N = 3, 8


async def _stall(server: Server, slow: int, neighbours: int, tokens: int) -> tuple[int, int, float, float]:
    loop = asyncio.get_running_loop()
    gauges = await Gauges.open(server.port)
    bodies = [completion(n, tokens, stream=True) for n in range(neighbours)]
    alone = [(await ask(server.port, COMPLETIONS, body)).received for body in bodies]
    before = await gauges.look()
    files, memory = before("process_open_fds"), before("process_resident_memory_bytes")
    greedy = completion(0, tokens, stream=True, n=SLOW_N, temperature=1, logprobs=5)
    greedy |= {"prompt": [f"Slow {n}" for n in range(SLOW_PROMPTS)]}
    stalled = [await Connection.open(server.port, receive_buffer=4096) for _ in range(slow)]
    for number, connection in enumerate(stalled):
        # Every second request is not streamed: its answer has to be bounded as well.
        connection.send(COMPLETIONS, greedy | {"seed": number, "stream": number % 2 == 0})
        connection.stop_reading()
    started = loop.time()
    answers = await asyncio.gather(*(ask(server.port, COMPLETIONS, body) for body in bodies))
    num_equal = sum(answer.received == received for answer, received in zip(answers, alone, strict=True))
    grown = num_left = 0.0
    while loop.time() - started < HANG_SECONDS:
        now = await gauges.look()
        grown = max(grown, now("process_resident_memory_bytes") - memory)
        num_left = now("process_open_fds") - files
        if num_left <= 0 and now("num_requests_running") + now("num_requests_waiting") == 0:
            break
        await asyncio.sleep(0.02)
    seconds = loop.time() - started
    for connection in stalled:
        connection.disconnect()
    gauges.close()
    return num_equal, slow - max(0, int(num_left)), seconds, grown
