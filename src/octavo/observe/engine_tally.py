"""What engines have done, over all of their lives. Each counts from zero; the sums here go on."""

from dataclasses import dataclass, field

from octavo.link.status_page import Phase
from octavo.observe.histogram import SHORT, Histogram
from octavo.protocol import EngineStats


@dataclass(frozen=True)
class EngineCounts:
    """Of steps for clients: an engine's warm-up is not in it."""

    steps: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    preemptions: int = 0

    def plus(self, since: EngineStats, until: EngineStats) -> "EngineCounts":
        return EngineCounts(
            self.steps + until.steps - since.steps,
            self.prompt_tokens + until.prompt_tokens - since.prompt_tokens,
            self.prompt_tokens_cached + until.prompt_tokens_cached - since.prompt_tokens_cached,
            self.preemptions + until.preemptions - since.preemptions,
        )


@dataclass
class EngineTally:
    """Mutated by EngineSupervisor only: a few additions for each step."""

    stats: EngineStats | None = None  # the last that was heard, be it of a dead engine
    is_there: bool = False  # an engine that is ready, and lives
    step_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT))
    phase_seconds: dict[Phase, float] = field(default_factory=dict)  # of the last start
    _before: EngineCounts = EngineCounts()  # by engines that are dead
    _at_ready: EngineStats | None = None
    _phase: tuple[Phase, float] | None = None  # of an engine that is starting, and since when

    @property
    def counts(self) -> EngineCounts:
        if self._at_ready is None or self.stats is None:
            return self._before
        return self._before.plus(self._at_ready, self.stats)

    def note(self, stats: EngineStats) -> None:
        last, self.stats = self.stats, stats
        if last is not None and stats.steps > last.steps:
            self.step_seconds.observe((stats.step_seconds - last.step_seconds) / (stats.steps - last.steps))

    def meet(self, stats: EngineStats) -> None:
        """An engine is ready; what it has counted so far was its warm-up."""
        self._before = self.counts
        self._at_ready = self.stats = stats
        self.is_there = True

    def lose(self) -> None:
        """The engine is dead. What it had done is not forgotten."""
        self.is_there = False

    def begin(self, now: float) -> None:
        """An engine is being started."""
        self.phase_seconds = {}
        self._phase = Phase.STARTING, now

    def watch(self, phase: Phase, now: float) -> None:
        """To be called often while an engine starts; a phase too short to be seen took no time."""
        if self._phase is None or phase <= self._phase[0]:
            return
        last, since = self._phase
        self.phase_seconds[last] = now - since
        self._phase = None if phase is Phase.SERVING else (phase, now)

    def phases_in_words(self) -> str:
        """Of the last start, for people who wait for it."""
        spent = [
            f"{phase.name.lower().replace('_', ' ')} {seconds:.2f} s"
            for phase, seconds in self.phase_seconds.items()
        ]
        return ", ".join(spent)
