"""Measuring on a machine that is never at rest.

Contestants run by turns in one process, each between two probes of what the machine can do at that moment.
What is reported are medians of paired figures: a run over its own probes, a run over its rival's run of the
same turn.

In some virtual machines AMX falls to a quarter of its speed for seconds at a time, with nothing of ours
running. A turn that saw this is dropped, and taken again while there is patience.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.kernels.library import Engine, Memory

MEBIBYTE = 1 << 20
THROTTLED_BELOW = 0.6  # of the best speed that AMX showed in this run
PROBE_STEPS = 9000  # of the tile probe: 0.2 ms at full speed
PROBE_BYTES = 48 * MEBIBYTE  # read by one probe: 1.6 ms
MOST_TURNS = 3  # taken for each that is wanted
PAUSE = 0.005  # seconds, between looks at a machine that is throttled


@dataclass(frozen=True)
class Limits:
    """What the machine can do at a moment."""

    bandwidth: float  # bytes per second
    peak: float  # floating-point operations per second; 0: not known, as there is no AMX


@dataclass(frozen=True)
class Work:
    """What must be done, however it is done: bytes that come from memory, and operations."""

    num_bytes: float
    flops: float

    def least_seconds(self, limits: Limits) -> float:
        """The roofline: max(bytes / bandwidth, operations / peak)."""
        return max(self.num_bytes / limits.bandwidth, self._compute_seconds(limits))

    def is_memory_bound(self, limits: Limits) -> bool:
        return self.num_bytes / limits.bandwidth >= self._compute_seconds(limits)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.num_bytes

    def _compute_seconds(self, limits: Limits) -> float:
        return self.flops / limits.peak if limits.peak else 0.0


@dataclass(frozen=True)
class Run:
    """One run of a contestant, with the seconds of it that each kind of native kernel took."""

    seconds: float
    work: Work
    kernels: Mapping[str, float] = field(default_factory=dict)


Contestant = Callable[[], Run]


@dataclass(frozen=True)
class Turn:
    """One run of every contestant, and the limits around each."""

    runs: tuple[Run, ...]
    limits: tuple[Limits, ...]  # beside each run: the mean of before and after
    lowest_peak: float  # that a probe of this turn showed


class Machine(Protocol):
    @property
    def best_peak(self) -> float:
        """The greatest peak that any probe has shown so far."""

    def probe(self) -> Limits: ...


class NativeMachine:
    """Probes with the native library: all threads read memory that no cache holds, then multiply tiles."""

    def __init__(self, engine: Engine, *, memory_bytes: int, look_around: float) -> None:
        """`look_around`: seconds in which to see AMX at its best."""
        self._engine = engine
        self._memory = Memory(engine.library, memory_bytes)
        assert self._memory.address is not None
        # Memory that was never written is one page of zeros, and would come from the cache.
        ctypes.memset(self._memory.address, 1, memory_bytes)
        self._next = 0
        self.best_peak = 0.0
        end = time.perf_counter() + look_around
        while self._probe_peak() and time.perf_counter() < end:
            pass

    def probe(self) -> Limits:
        num_bytes = min(PROBE_BYTES, self._memory.num_bytes)
        if self._next + num_bytes > self._memory.num_bytes:
            self._next = 0
        bandwidth = self._engine.probe_read(self._memory, self._next, num_bytes)
        self._next += num_bytes
        return Limits(bandwidth, self._probe_peak())

    def _probe_peak(self) -> float:
        peak = self._engine.probe_amx(PROBE_STEPS)
        self.best_peak = max(self.best_peak, peak)
        return peak


@dataclass(frozen=True)
class Measurement:
    """The turns that count. `is_throttled`: there was none at full speed, and these are what there is."""

    turns: tuple[Turn, ...]
    num_dropped: int
    is_throttled: bool

    @property
    def limits(self) -> Limits:
        """Beside the first contestant, at the median."""
        return Limits(
            statistics.median(turn.limits[0].bandwidth for turn in self.turns),
            statistics.median(turn.limits[0].peak for turn in self.turns),
        )

    def seconds(self, contestant: int = 0) -> float:
        return statistics.median(turn.runs[contestant].seconds for turn in self.turns)

    def kernel_seconds(self, contestant: int = 0) -> float:
        return statistics.median(sum(turn.runs[contestant].kernels.values()) for turn in self.turns)

    def work(self, contestant: int = 0) -> Work:
        """Of the turn in the middle: a sequence grows from step to step."""
        return self.turns[len(self.turns) // 2].runs[contestant].work

    def ratio(self, contestant: int, rival: int) -> float:
        """How many times longer the contestant takes than its rival: the median over turns."""
        return statistics.median(
            turn.runs[contestant].seconds / turn.runs[rival].seconds for turn in self.turns
        )

    def fraction(self, seconds_of: Callable[[Run], float], contestant: int = 0) -> float:
        """Which part of the roofline a contestant reaches: the median over turns."""
        return statistics.median(
            turn.runs[contestant].work.least_seconds(turn.limits[contestant])
            / seconds_of(turn.runs[contestant])
            for turn in self.turns
        )

    def share(self, kind: str, contestant: int = 0) -> float:
        """Which part of the seconds was spent in one kind of kernel, over all turns together."""
        runs = [turn.runs[contestant] for turn in self.turns]
        return sum(run.kernels.get(kind, 0.0) for run in runs) / sum(run.seconds for run in runs)


def measure(
    machine: Machine,
    contestants: Sequence[Contestant],
    *,
    num_turns: int,
    patience: float,
    needs_amx: bool = True,
) -> Measurement:
    """`num_turns` turns, each contestant first by rotation.

    For at most `patience` seconds a throttled machine is waited for, and turns that it spoiled are taken
    again. No contestant runs more than MOST_TURNS * num_turns times.
    """
    turns: list[Turn] = []
    end = time.perf_counter() + patience

    def is_good(turn: Turn) -> bool:
        return not needs_amx or turn.lowest_peak >= THROTTLED_BELOW * machine.best_peak

    while sum(map(is_good, turns)) < num_turns and len(turns) < MOST_TURNS * num_turns:
        has_time = time.perf_counter() < end
        if len(turns) >= num_turns and not has_time:
            break
        limits = machine.probe()
        if needs_amx and has_time and limits.peak < THROTTLED_BELOW * machine.best_peak:
            time.sleep(PAUSE)
            continue
        turns.append(_take_turn(machine, contestants, first=len(turns) % len(contestants), before=limits))
    good = tuple(turn for turn in turns if is_good(turn))
    if not good:
        return Measurement(tuple(turns), 0, is_throttled=True)
    return Measurement(good, len(turns) - len(good), is_throttled=False)


def _take_turn(machine: Machine, contestants: Sequence[Contestant], *, first: int, before: Limits) -> Turn:
    runs: dict[int, Run] = {}
    limits: dict[int, Limits] = {}
    lowest_peak = before.peak
    for i in range(len(contestants)):
        index = (first + i) % len(contestants)
        runs[index] = contestants[index]()
        after = machine.probe()
        limits[index] = Limits((before.bandwidth + after.bandwidth) / 2, (before.peak + after.peak) / 2)
        lowest_peak = min(lowest_peak, after.peak)
        before = after
    in_order = range(len(contestants))
    return Turn(tuple(runs[i] for i in in_order), tuple(limits[i] for i in in_order), lowest_peak)
