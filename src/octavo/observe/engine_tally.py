"""Counts over all engines of a replica, one after another, and over all replicas of a server.

Each engine counts from zero; these sums continue across restarts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Self

from octavo.link.heartbeat import Phase
from octavo.observe.histogram import SHORT, Histogram
from octavo.protocol import EngineStats


@dataclass(frozen=True)
class EngineCounts:
    """Counts of the work for clients. They exclude an engine's warm-up."""

    steps: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    preemptions: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0
    tokens_sampled: int = 0
    step_seconds: float = 0.0

    def plus(self, since: EngineStats, until: EngineStats) -> "EngineCounts":
        return EngineCounts(
            self.steps + until.steps - since.steps,
            self.prompt_tokens + until.prompt_tokens - since.prompt_tokens,
            self.prompt_tokens_cached + until.prompt_tokens_cached - since.prompt_tokens_cached,
            self.preemptions + until.preemptions - since.preemptions,
            self.tokens_drafted + until.tokens_drafted - since.tokens_drafted,
            self.tokens_accepted + until.tokens_accepted - since.tokens_accepted,
            self.tokens_sampled + until.tokens_sampled - since.tokens_sampled,
            self.step_seconds + (until.step_seconds - since.step_seconds),  # in this order it never decreases
        )

    def __add__(self, other: "EngineCounts") -> "EngineCounts":
        return EngineCounts(*[mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)])


@dataclass(frozen=True)
class EngineTotals:
    """The sums over all replicas at one moment."""

    counts: EngineCounts
    live: tuple[EngineStats, ...]  # of the replicas with an engine that is ready
    step_seconds: Histogram
    phase_seconds: Mapping[Phase, float]  # of the latest start of the first replica


@dataclass
class EngineTally:
    """Changed by EngineSupervisor only, at the cost of a few additions per step."""

    stats: EngineStats | None = None  # the latest received, possibly from a dead engine
    is_ready: bool = False  # whether there is a live engine that has started
    step_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT))
    phase_seconds: dict[Phase, float] = field(default_factory=dict)  # of the latest start
    _before: EngineCounts = EngineCounts()  # by earlier engines
    _at_ready: EngineStats | None = None
    _phase: tuple[Phase, float] | None = None  # of an engine that is starting, and when the phase began

    @property
    def counts(self) -> EngineCounts:
        if self._at_ready is None or self.stats is None:
            return self._before
        return self._before.plus(self._at_ready, self.stats)

    @classmethod
    def total(cls, tallies: Sequence[Self]) -> EngineTotals:
        """Return the sums over the replicas of a server."""
        step_seconds = Histogram(SHORT)
        for tally in tallies:
            step_seconds.add(tally.step_seconds)
        return EngineTotals(
            sum([tally.counts for tally in tallies], EngineCounts()),
            tuple([tally.stats for tally in tallies if tally.is_ready and tally.stats is not None]),
            step_seconds,
            tallies[0].phase_seconds,
        )

    def note(self, stats: EngineStats) -> None:
        last, self.stats = self.stats, stats
        if last is not None and stats.steps > last.steps:
            self.step_seconds.observe((stats.step_seconds - last.step_seconds) / (stats.steps - last.steps))

    def engine_ready(self, stats: EngineStats) -> None:
        """Begin to count for a new engine; `stats` is what its warm-up counted."""
        self._before = self.counts
        self._at_ready = self.stats = stats
        self.is_ready = True

    def engine_lost(self) -> None:
        """Record the death of the engine. Its counts are kept."""
        self.is_ready = False

    def absorb(self, other: Self) -> None:
        """Add the counts of a replica that is removed: counters must not decrease."""
        self._before += other.counts
        self.step_seconds.add(other.step_seconds)

    def start_began(self, now: float) -> None:
        """Record that an engine is being started."""
        self.phase_seconds = {}
        self._phase = Phase.STARTING, now

    def note_phase(self, phase: Phase, now: float) -> None:
        """Record the current phase of a start. Call it often: a phase between two calls is not recorded."""
        if self._phase is None or phase <= self._phase[0]:
            return
        last, since = self._phase
        self.phase_seconds[last] = now - since
        self._phase = None if phase is Phase.SERVING else (phase, now)

    def phase_summary(self) -> str:
        """Return the durations of the phases of the latest start, for the log."""
        durations = [
            f"{phase.name.lower().replace('_', ' ')} {seconds:.2f} s"
            for phase, seconds in self.phase_seconds.items()
        ]
        return ", ".join(durations)
