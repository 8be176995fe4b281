"""What `octavo top` has received so far, as far as the panels need it."""

from collections import deque
from dataclasses import dataclass, field

from octavo.protocol import EngineStats
from octavo.top.connection import Unavailable
from octavo.top.fleet import FleetHistory
from octavo.view import AwayEvent, Event, FactsEvent, FinishedRequest, FleetEvent, StepView, ViewEvent

MAX_SAMPLES = 600  # per chart; wider than any terminal
MAX_STEPS = 600
MAX_FINISHED = 200
RATE_SECONDS = 2.0  # period that the figures beside the charts cover


@dataclass(frozen=True)
class Sample:
    """The values of one view for the charts. Rates are relative to the previous view."""

    time: float
    tokens_per_second: float
    prompt_tokens_per_second: float  # computed, not cached
    ttft: float | None
    itl: float | None
    num_running: int
    num_waiting: int
    held_fraction: float  # of the KV blocks


@dataclass
class History:
    """The state behind the panels. Only its methods change it."""

    state: str = "connecting"
    chosen: str | None = None  # the replica whose engine the user wants to see; None: the server chooses
    notice: str = ""  # why the choice of the user was changed
    fleet: FleetHistory = field(default_factory=FleetHistory)
    facts: FactsEvent | None = None
    view: ViewEvent | None = None  # the latest; None while there is no engine
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    steps: deque[StepView] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    finished: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=MAX_FINISHED))
    _facts_at: float | None = None  # Unix time on the server's clock
    _counts: deque[tuple[float, EngineStats]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    def note(self, update: Event | Unavailable) -> None:
        """Add a received update."""
        if isinstance(update, ViewEvent):
            self._note_view(update)
        elif isinstance(update, FleetEvent):
            self.fleet.note(update)
        elif isinstance(update, FactsEvent):
            if self.facts is not None and self.facts.replica != update.replica:
                self.samples.clear()
            self.state, self.facts, self._facts_at = "serving", update, None
            self._forget_engine()
        elif isinstance(update, AwayEvent):
            self.state = self._state_of(update)
            self._forget_engine()
        else:
            self.state = update.reason
            self._forget_engine()
            self.fleet.forget()

    def choose(self, replica: str | None, notice: str = "") -> None:
        """Prepare for the events of another connection, which shows the engine of this replica."""
        if replica not in (None, self.shown_replica):
            self.samples.clear()
        self.chosen, self.notice = replica, notice
        self.state = "connecting"
        self._forget_engine()

    def dismiss_notice(self) -> None:
        self.notice = ""

    @property
    def shown_replica(self) -> str | None:
        """The name of the replica whose engine is shown."""
        return self.chosen or (self.facts.replica if self.facts is not None else None)

    def _state_of(self, away: AwayEvent) -> str:
        if away.state == "removed":
            return f"the replica {self.chosen} was removed"
        engine = "the engine" if self.chosen is None else f"the engine of {self.chosen}"
        if away.state == "failed":
            return f"{engine} has failed"
        progress = f" {100 * away.done / away.total:.0f} %" if away.total else ""
        return f"{engine} is {away.state}{progress}"

    def _forget_engine(self) -> None:
        """Drop what an engine counted since it started. Charts of its replica and finished requests stay."""
        self.view = None
        self.steps.clear()
        self._counts.clear()

    def _note_view(self, view: ViewEvent) -> None:
        self.state, self.view = "serving", view
        self._facts_at = self._facts_at or view.time
        self.steps.extend(view.steps)
        self.finished.extend(view.finished)
        before = self._counts[-1] if self._counts else (view.time, view.stats)
        self._counts.append((view.time, view.stats))
        sampled, computed = _rates(before, self._counts[-1])
        stats = view.stats
        self.samples.append(
            Sample(
                view.time,
                sampled,
                computed,
                view.latency.ttft_p50,
                view.latency.itl_p50,
                stats.num_running,
                stats.num_waiting,
                1 - (stats.blocks_free + stats.blocks_idle) / max(stats.blocks_total, 1),
            )
        )

    @property
    def uptime_seconds(self) -> float:
        """The uptime of the server."""
        if self.facts is None or self.view is None:
            return 0.0
        return self.facts.uptime_seconds + self.view.time - (self._facts_at or self.view.time)

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens sampled and prompt tokens computed per second, over the last `RATE_SECONDS`."""
        if len(self._counts) < 2:
            return 0.0, 0.0
        last = self._counts[-1]
        first = next(counts for counts in reversed(self._counts) if counts is not last)
        for counts in reversed(self._counts):
            if last[0] - counts[0] > RATE_SECONDS:
                break
            first = counts if counts is not last else first
        return _rates(first, last)


def _rates(first: tuple[float, EngineStats], last: tuple[float, EngineStats]) -> tuple[float, float]:
    seconds = last[0] - first[0]
    if seconds <= 0:
        return 0.0, 0.0
    sampled = last[1].tokens_sampled - first[1].tokens_sampled
    # Every sampled token is computed once, in a later step; the other computed tokens belong to prompts.
    prompts = max(0, last[1].tokens_computed - first[1].tokens_computed - sampled)
    return sampled / seconds, prompts / seconds
