"""Ten times the capacity in requests: most are rejected at once, accepted ones are served as usual."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

from load.figure import SLOW_ENGINE, Row, Start, percentile, run
from load.requests import completion
from load.wire import COMPLETIONS, Answer, Gauges, Lost, ask
from server.process import Server

RUNNING, QUEUE = 16, 32
FLAGS = (*SLOW_ENGINE, "--max-running", str(RUNNING), "--max-queued-requests", str(QUEUE))
SETTLING = 1.0  # seconds before the measurement starts
LOOK_SECONDS = 0.05


@dataclass
class Seen:
    """Observations during overload, over all rounds."""

    taken: list[Answer] = field(default_factory=list)
    refused: list[Answer] = field(default_factory=list)
    lost: int = 0
    longest_queue: float = 0.0
    overloaded: list[float] = field(default_factory=list)  # tokens per second
    peak: list[float] = field(default_factory=list)
    overloaded_batch: list[float] = field(default_factory=list)  # tokens per step: independent of the clock
    peak_batch: list[float] = field(default_factory=list)


def measure(start: Start, *, seconds: float, rounds: int, factor: float, tokens: int) -> list[Row]:
    """Overload the server for `seconds` in total, and measure the peak rate before and after each part."""
    server = start(*FLAGS, "--kv-memory", "64MiB")
    seen = run(_measure(server, seconds / rounds, rounds, factor, tokens))
    size = f"{factor:g}x for {seconds:g} s, {len(seen.taken)} taken, {len(seen.refused)} refused"
    slowest = percentile([answer.seconds for answer in seen.refused], 99)
    usual = percentile([answer.seconds for answer in seen.refused], 50)
    served = percentile([answer.seconds for answer in seen.taken], 50)
    goodput = sum(seen.overloaded) / len(seen.overloaded) / (sum(seen.peak) / len(seen.peak))
    fullness = percentile(seen.overloaded_batch, 50) / percentile(seen.peak_batch, 50)
    whole = sum(_is_whole(answer, tokens) for answer in seen.taken)
    lost = len(seen.taken) - whole + seen.lost
    says = sorted(int(answer.headers["retry-after-ms"]) / 1e3 for answer in seen.refused)
    usually = percentile(says, 50)
    # The time after which half of the queue has started, which Retry-After estimates.
    truth = QUEUE / 2 / (sum(seen.overloaded) / len(seen.overloaded) / tokens)
    return [
        Row(
            "overload: queue",
            size,
            f"{seen.longest_queue:.0f} at most",
            f"never over {QUEUE}",
            seen.longest_queue <= QUEUE,
        ),
        Row(
            "overload: refusals",
            size,
            f"p99 {1e3 * slowest:.1f} ms; median {1e3 * usual:.1f} ms, of those taken {served:.1f} s",
            "p99 at most 50 ms",
            slowest <= 0.05,
            is_tolerable=usual <= served / 5,  # rejected requests do not wait in the queue
        ),
        Row(
            "overload: goodput",
            size,
            f"{100 * goodput:.0f} % of peak; of a step's tokens {100 * fullness:.0f} %",
            "at least 90 %",
            goodput >= 0.9,
            is_tolerable=fullness >= 0.9 / 2,
        ),
        Row("overload: taken", size, f"{lost} lost", "none", lost == 0),
        Row(
            "overload: Retry-After",
            size,
            f"{says[0]:.1f} to {says[-1]:.1f} s; half of the queue takes {truth:.1f} s",
            "on every refusal, within 3x of that",
            truth / 3 <= says[0] and says[-1] <= max(1.0, truth * 3),
            is_tolerable=truth / 6 <= usually <= max(1.0, truth * 6),
        ),
    ]


async def _measure(server: Server, seconds: float, rounds: int, factor: float, tokens: int) -> Seen:
    seen, gauges = Seen(), await Gauges.open(server.port)
    await _peak(server, gauges, seen, seconds, tokens)
    for _ in range(rounds):
        a_second = factor * seen.peak[-1] / tokens
        await _overload(server, gauges, seen, seconds=seconds, a_second=a_second, tokens=tokens)
        await _peak(server, gauges, seen, seconds, tokens)
    gauges.close()
    return seen


async def _peak(server: Server, gauges: Gauges, seen: Seen, seconds: float, tokens: int) -> None:
    """Measure the rate with a queue that is never empty and never full."""
    is_over = False

    async def client(number: int) -> None:
        while not is_over:
            answer = await ask(server.port, COMPLETIONS, completion(number, tokens, stream=True))
            assert _is_whole(answer, tokens)

    clients = asyncio.gather(*(client(number) for number in range(RUNNING + QUEUE // 4)))
    rate, batch, _ = await _rate(gauges, asyncio.sleep(SETTLING + seconds / 2))
    seen.peak.append(rate)
    seen.peak_batch.append(batch)
    is_over = True
    await clients


async def _overload(
    server: Server, gauges: Gauges, seen: Seen, *, seconds: float, a_second: float, tokens: int
) -> None:
    """Send requests at even intervals, regardless of the fate of earlier ones."""

    async def one(number: int) -> None:
        try:
            answer = await ask(server.port, COMPLETIONS, completion(number, tokens, stream=True))
        except Lost:
            seen.lost += 1
        else:
            (seen.refused if answer.status == 429 else seen.taken).append(answer)

    async def send_all() -> None:
        started = time.perf_counter()
        number = 0
        while (now := time.perf_counter() - started) < seconds + SETTLING:
            while number < now * a_second:
                group.create_task(one(number))
                number += 1
            await asyncio.sleep(1 / a_second)
        if not seen.refused:
            # The machine was so slow while the peak was measured that this was no overload. More requests at
            # once than can run and wait are one on any machine.
            for extra in range(2 * (RUNNING + QUEUE)):
                group.create_task(one(number + extra))

    async with asyncio.TaskGroup() as group:
        rate, batch, longest_queue = await _rate(gauges, send_all())
    seen.overloaded.append(rate)
    seen.overloaded_batch.append(batch)
    seen.longest_queue = max(seen.longest_queue, longest_queue)


async def _rate(gauges: Gauges, meanwhile: Awaitable[None]) -> tuple[float, float, float]:
    """Return tokens per second and per step after the settling time, and the maximum queue length."""
    work = asyncio.ensure_future(meanwhile)
    begun, before = time.perf_counter(), await gauges.look()
    await asyncio.sleep(SETTLING)
    started, first = time.perf_counter(), await gauges.look()
    last, ended, longest_queue = first, started, 0.0
    while not work.done() or last("step_seconds_count") == before("step_seconds_count"):
        await asyncio.sleep(LOOK_SECONDS)
        ended, last = time.perf_counter(), await gauges.look()
        longest_queue = max(longest_queue, last("num_requests_queued"))
    if last("step_seconds_count") == first("step_seconds_count"):
        started, first = begun, before  # this process was paused; then the settling time counts, too
    tokens, steps = (last(n) - first(n) for n in ("generation_tokens_total", "step_seconds_count"))
    return tokens / (ended - started), tokens / steps, longest_queue


def _is_whole(answer: Answer, tokens: int) -> bool:
    received = answer.received
    return answer.status == 200 and (len(received.token_ids), received.finish_reasons, received.num_ends) == (
        tokens,
        ("length",),
        1,
    )
