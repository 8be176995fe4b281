"""Measurements on a machine whose speed varies.

Candidates run in turn in one process, each between two probes of the machine's current limits. Reported
figures are medians of paired ratios: a run against its own probes, or against the baseline's run in the
same turn.

In some virtual machines AMX drops to a quarter of its speed for seconds at a time, even when this process
is idle. A turn during which this happened is dropped and repeated, up to a time limit.
"""

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.kernels.library import KernelPool, Memory

MEBIBYTE = 1 << 20
THROTTLED_BELOW = 0.6  # of the highest AMX speed seen in this run
PROBE_STEPS = 9000  # of the tile probe; takes 0.2 ms at full speed
PROBE_BYTES = 48 * MEBIBYTE  # read by one probe; takes 1.6 ms
MAX_TURNS = 3  # attempts per requested turn
PAUSE = 0.005  # seconds between probes of a throttled machine


@dataclass(frozen=True)
class MachineLimits:
    """The limits of the machine at one point in time."""

    bandwidth: float  # bytes per second
    peak: float  # floating-point operations per second; 0: unknown, without AMX


@dataclass(frozen=True)
class MinimumWork:
    """The work that any implementation must do: bytes read from or written to memory, and operations."""

    num_bytes: float
    flops: float

    def min_seconds(self, limits: MachineLimits) -> float:
        """Return the roofline time: max(bytes / bandwidth, operations / peak)."""
        return max(self.num_bytes / limits.bandwidth, self._compute_seconds(limits))

    def is_memory_bound(self, limits: MachineLimits) -> bool:
        return self.num_bytes / limits.bandwidth >= self._compute_seconds(limits)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.num_bytes

    def _compute_seconds(self, limits: MachineLimits) -> float:
        return self.flops / limits.peak if limits.peak else 0.0


@dataclass(frozen=True)
class Run:
    """One run of a candidate, with the seconds that each kind of native kernel took."""

    seconds: float
    work: MinimumWork
    kernels: Mapping[str, float] = field(default_factory=dict)


Candidate = Callable[[], Run]


@dataclass(frozen=True)
class Turn:
    """One run of every candidate, with the machine limits measured around it."""

    runs: tuple[Run, ...]
    limits: tuple[MachineLimits, ...]  # per run: the mean of the probes before and after it
    lowest_peak: float  # of all probes in this turn


class Machine(Protocol):
    @property
    def best_peak(self) -> float:
        """The highest peak of all probes so far."""

    def probe(self) -> MachineLimits: ...


class NativeMachine:
    """Probes with the native library: all threads read memory that is not in a cache, then multiply tiles."""

    def __init__(self, pool: KernelPool, *, memory_bytes: int, peak_search_seconds: float) -> None:
        """Probe AMX for `peak_search_seconds` to find its full speed."""
        self._pool = pool
        self._memory = Memory(pool.library, memory_bytes)
        assert self._memory.address is not None
        # Memory that was never written maps to a single zero page and would be read from the cache.
        ctypes.memset(self._memory.address, 1, memory_bytes)
        self._next = 0
        self.best_peak = 0.0
        end = time.perf_counter() + peak_search_seconds
        while self._probe_peak() and time.perf_counter() < end:
            pass

    def probe(self) -> MachineLimits:
        num_bytes = min(PROBE_BYTES, self._memory.num_bytes)
        if self._next + num_bytes > self._memory.num_bytes:
            self._next = 0
        bandwidth = self._pool.probe_read(self._memory, self._next, num_bytes)
        self._next += num_bytes
        return MachineLimits(bandwidth, self._probe_peak())

    def _probe_peak(self) -> float:
        peak = self._pool.probe_amx(PROBE_STEPS)
        self.best_peak = max(self.best_peak, peak)
        return peak


@dataclass(frozen=True)
class Measurement:
    """The turns at full speed. If there were none, all turns, and `is_throttled` is set."""

    turns: tuple[Turn, ...]
    num_dropped: int
    is_throttled: bool

    @property
    def limits(self) -> MachineLimits:
        """The median limits around the runs of the first candidate."""
        return MachineLimits(
            statistics.median(turn.limits[0].bandwidth for turn in self.turns),
            statistics.median(turn.limits[0].peak for turn in self.turns),
        )

    def seconds(self, candidate: int = 0) -> float:
        return statistics.median(turn.runs[candidate].seconds for turn in self.turns)

    def kernel_seconds(self, candidate: int = 0) -> float:
        return statistics.median(sum(turn.runs[candidate].kernels.values()) for turn in self.turns)

    def work(self, candidate: int = 0) -> MinimumWork:
        """Return the work of the middle turn: sequences grow from step to step."""
        return self.turns[len(self.turns) // 2].runs[candidate].work

    def ratio(self, candidate: int, baseline: int) -> float:
        """Return the candidate's time divided by the baseline's: the median over turns."""
        return statistics.median(
            turn.runs[candidate].seconds / turn.runs[baseline].seconds for turn in self.turns
        )

    def fraction(self, seconds_of: Callable[[Run], float], candidate: int = 0) -> float:
        """Return the fraction of the roofline that a candidate reaches: the median over turns."""
        return statistics.median(
            turn.runs[candidate].work.min_seconds(turn.limits[candidate]) / seconds_of(turn.runs[candidate])
            for turn in self.turns
        )

    def share(self, kind: str, candidate: int = 0) -> float:
        """Return the fraction of the time in one kind of kernel, over all turns together."""
        runs = [turn.runs[candidate] for turn in self.turns]
        return sum(run.kernels.get(kind, 0.0) for run in runs) / sum(run.seconds for run in runs)


def measure(
    machine: Machine,
    candidates: Sequence[Candidate],
    *,
    num_turns: int,
    max_wait: float,
    needs_amx: bool = True,
) -> Measurement:
    """Measure `num_turns` turns; the candidate that runs first rotates.

    For up to `max_wait` seconds, wait while the machine is throttled and repeat the turns during which it
    was. No candidate runs more than MAX_TURNS * num_turns times.
    """
    turns: list[Turn] = []
    end = time.perf_counter() + max_wait

    def is_good(turn: Turn) -> bool:
        return not needs_amx or turn.lowest_peak >= THROTTLED_BELOW * machine.best_peak

    while sum(map(is_good, turns)) < num_turns and len(turns) < MAX_TURNS * num_turns:
        has_time = time.perf_counter() < end
        if len(turns) >= num_turns and not has_time:
            break
        limits = machine.probe()
        if needs_amx and has_time and limits.peak < THROTTLED_BELOW * machine.best_peak:
            time.sleep(PAUSE)
            continue
        turns.append(_take_turn(machine, candidates, first=len(turns) % len(candidates), before=limits))
    good = tuple(turn for turn in turns if is_good(turn))
    if not good:
        return Measurement(tuple(turns), 0, is_throttled=True)
    return Measurement(good, len(turns) - len(good), is_throttled=False)


def _take_turn(
    machine: Machine, candidates: Sequence[Candidate], *, first: int, before: MachineLimits
) -> Turn:
    runs: dict[int, Run] = {}
    limits: dict[int, MachineLimits] = {}
    lowest_peak = before.peak
    for i in range(len(candidates)):
        index = (first + i) % len(candidates)
        runs[index] = candidates[index]()
        after = machine.probe()
        limits[index] = MachineLimits(
            (before.bandwidth + after.bandwidth) / 2, (before.peak + after.peak) / 2
        )
        lowest_peak = min(lowest_peak, after.peak)
        before = after
    in_order = range(len(candidates))
    return Turn(tuple(runs[i] for i in in_order), tuple(limits[i] for i in in_order), lowest_peak)
