"""What it costs to watch an engine: tokens a second of many streams with a watcher, and with none.

python benchmarks/view_cost.py MODEL [--streams 32] [--tokens 96] [--rounds 6] [--watchers 1]

Rounds alternate on one server, so that both see the same moments of the machine; the figure is the median of
the pairs. No two rounds share a prompt. The watcher reads what comes and throws it away: what a page or a
terminal does with it is not counted.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from load.figure import run
from load.wire import COMPLETIONS, ask
from server.process import Server

PROMPT_TOKENS = 64


async def tokens_a_second(port: int, number: int, streams: int, tokens: int) -> float:
    async def stream(index: int) -> None:
        prompt = [100 + number, 100 + index, *range(1000, 1000 + PROMPT_TOKENS - 2)]
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": index}
        answer = await ask(port, COMPLETIONS, body)
        assert answer.status == 200, bytes(answer.body)

    began = time.perf_counter()
    await asyncio.gather(*(stream(index) for index in range(streams)))
    return streams * tokens / (time.perf_counter() - began)


class Watcher:
    """Counts views, and their bytes."""

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


async def measure(port: int, options: argparse.Namespace) -> None:
    numbers = itertools.count()
    closed: list[float] = []
    opened: list[float] = []
    views = num_bytes = 0
    await tokens_a_second(port, next(numbers), options.streams, options.tokens)  # to warm up
    print(f"{'round':>5} {'closed':>14} {'open':>14} {'cost':>8}")
    for number in range(options.rounds):
        watchers = [Watcher() for _ in range(options.watchers)]
        pair: dict[bool, float] = {}
        for is_open in (False, True) if number % 2 else (True, False):
            if is_open:
                for watcher in watchers:
                    await watcher.start(port, options.interval)
            pair[is_open] = await tokens_a_second(port, next(numbers), options.streams, options.tokens)
            if is_open:
                for watcher in watchers:
                    await watcher.stop()
        closed.append(pair[False])
        opened.append(pair[True])
        views += sum(watcher.num_views for watcher in watchers)
        num_bytes += sum(watcher.num_bytes for watcher in watchers)
        show(str(number), pair[False], pair[True])
    show("all", statistics.median(closed), statistics.median(opened))
    costs = [100 * (1 - after / before) for before, after in zip(closed, opened, strict=True)]
    print(f"median of the pairs: {statistics.median(costs):.1f}% while open", end="; ")
    print(f"{views} views of {num_bytes / max(views, 1) / 1000:.1f} kB")


def show(name: str, closed: float, opened: float) -> None:
    cost = 100 * (1 - opened / closed)
    print(f"{name:>5} {closed:>8.1f} tok/s {opened:>8.1f} tok/s {cost:>7.1f}%", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="of each stream")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--watchers", type=int, default=1)
    parser.add_argument("--interval", type=float, default=0.25)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    flags = ("--dtype", options.dtype, "--kv-memory", "256MiB", "--max-model-len", "1024")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), options.model, *flags)
        try:
            server.wait_until_ready()
            run(measure(server.port, options))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
