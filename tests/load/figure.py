"""Results of load tests: rows of a table, each a figure with its target."""

import asyncio
import math
import resource
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import uvloop

from server.process import Server

Result = TypeVar("Result")

Start = Callable[..., Server]  # takes flags of `octavo serve`; returns a server that is ready

# Torch is slow with so small a model. The engine is therefore the bottleneck, as with any useful model, and
# not the front end and the clients, which share a core here.
SLOW_ENGINE = ("--kernels", "torch")


@contextmanager
def servers(model: Path, folder: Path) -> Iterator[Start]:
    """Start servers with one compute thread: the front end and the clients need the other cores."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        started.append(Server(folder, model, "--threads", "1", *flags, records=False))
        return started[-1].wait_until_ready()

    try:
        yield start
    finally:
        for server in started:
            server.stop()
    for server in started:
        assert "Traceback" not in server.log, server.log


@dataclass(frozen=True)
class Row:
    name: str
    size: str
    figure: str
    target: str
    is_met: bool
    # For a figure that other work on the machine makes worse: whether it is within twice its target, or its
    # property was verified in another way. Tests check only this, so that they pass on a slow machine.
    is_tolerable: bool | None = None

    @property
    def is_red(self) -> bool:
        return not (self.is_met if self.is_tolerable is None else self.is_tolerable)


def run(work: Coroutine[None, None, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that is not below the given percentage of all values."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@contextmanager
def few_files(number: int) -> Iterator[None]:
    """Processes started in this block have this soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def allow_files(number: int) -> None:
    """Raise the soft limit of open files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        raise SystemExit(f"{number} open files are needed, and the hard limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def table(rows: Sequence[Row]) -> str:
    cells = [("", "size", "figure", "target", "")]
    cells += [(r.name, r.size, r.figure, r.target, "met" if r.is_met else "NOT MET") for r in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)
