"""Measures the cost of watching an engine: tokens per second of many streams with and without a watcher.

python benchmarks/view_cost.py MODEL [--streams 32] [--tokens 96] [--rounds 6] [--watchers 1]

Rounds with and without watchers alternate on one server, so that both see the same conditions; the figure
is the median of the pairs. No two rounds share a prompt. The watcher reads the view and discards it: what a
web page or a terminal does with it is not measured. Processor time is that of front end and engine
together; it varies less than wall time on a noisy machine.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from load.figure import run
from load.wire import COMPLETIONS, ask
from server.process import Server

PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Round:
    tokens_per_second: float
    cpu_ms_per_token: float


def cpu_seconds(server: Server) -> float:
    total = 0
    for pid in (server.process.pid, server.engine_pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def one_round(server: Server, number: int, streams: int, tokens: int) -> Round:
    async def stream(index: int) -> None:
        prompt = [100 + number, 100 + index, *range(1000, 1000 + PROMPT_TOKENS - 2)]
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": index}
        answer = await ask(server.port, COMPLETIONS, body)
        assert answer.status == 200, bytes(answer.body)

    start, cpu = time.perf_counter(), cpu_seconds(server)
    await asyncio.gather(*(stream(index) for index in range(streams)))
    seconds, cpu = time.perf_counter() - start, cpu_seconds(server) - cpu
    return Round(streams * tokens / seconds, 1000 * cpu / (streams * tokens))


class ViewCounter:
    """Counts the views of a feed and their bytes."""

    def __init__(self) -> None:
        self.num_views = self.num_bytes = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, port: int, interval: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /octavo/view?interval={interval} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._task = asyncio.create_task(self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 20):
                self.num_bytes += len(data)
                self.num_views += data.count(b'{"kind":"view"')
        finally:
            writer.close()

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])


async def measure(server: Server, options: argparse.Namespace) -> None:
    numbers = itertools.count()
    pairs: list[tuple[Round, Round]] = []
    views = num_bytes = 0
    await one_round(server, next(numbers), options.streams, options.tokens)  # warm-up
    print(f"{'round':>6} {'closed':>23} {'open':>23} {'slower':>8} {'more CPU':>9}")
    for number in range(options.rounds):
        watchers = [ViewCounter() for _ in range(options.watchers)]
        done: dict[bool, Round] = {}
        for is_open in (False, True) if number % 2 else (True, False):
            for watcher in watchers if is_open else ():
                await watcher.start(server.port, options.interval)
            done[is_open] = await one_round(server, next(numbers), options.streams, options.tokens)
            for watcher in watchers if is_open else ():
                await watcher.stop()
        pairs.append((done[False], done[True]))
        views += sum(watcher.num_views for watcher in watchers)
        num_bytes += sum(watcher.num_bytes for watcher in watchers)
        print(f"{number:>6} {speed_of(done[False])} {speed_of(done[True])} {costs(*pairs[-1])}", flush=True)
    slower = statistics.median([100 * (1 - o.tokens_per_second / c.tokens_per_second) for c, o in pairs])
    more = statistics.median([100 * (o.cpu_ms_per_token / c.cpu_ms_per_token - 1) for c, o in pairs])
    print(f"median {'':>47} {slower:>7.1f}% {more:>8.1f}%")
    print(f"{views} views of {num_bytes / max(views, 1) / 1000:.1f} kB")


def speed_of(one: Round) -> str:
    return f"{one.tokens_per_second:>7.1f} tok/s {one.cpu_ms_per_token:>5.2f} ms"


def costs(closed: Round, opened: Round) -> str:
    slower = 100 * (1 - opened.tokens_per_second / closed.tokens_per_second)
    return f"{slower:>7.1f}% {100 * (opened.cpu_ms_per_token / closed.cpu_ms_per_token - 1):>8.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="tokens per stream")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--watchers", type=int, default=1)
    parser.add_argument("--interval", type=float, default=0.25)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    flags = ("--dtype", options.dtype, "--kv-memory", "256MiB", "--max-model-len", "1024")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), options.model, *flags, records=False)
        try:
            server.wait_until_ready()
            run(measure(server, options))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
