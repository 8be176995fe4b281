"""What has been seen so far: enough to draw any panel from, and no more."""

from collections import deque
from dataclasses import dataclass, field

from octavo.protocol import EngineStats
from octavo.top.connection import Away
from octavo.view import AwayEvent, Event, FactsEvent, FinishedRequest, StepView, ViewEvent

MOST_SAMPLES = 600  # of charts: wider than any terminal
MOST_STEPS = 600
MOST_FINISHED = 200
RATE_SECONDS = 2.0  # over which the figures beside the charts are measured


@dataclass(frozen=True)
class Sample:
    """One view, as charts want it. Rates are those since the view before."""

    time: float
    tokens_per_second: float
    prompt_tokens_per_second: float  # computed, not found in the cache
    ttft: float | None
    itl: float | None
    num_running: int
    num_waiting: int
    part_held: float  # of the pages


@dataclass
class History:
    """Mutated by `note` only."""

    state: str = "connecting"
    facts: FactsEvent | None = None
    view: ViewEvent | None = None  # the last; None while there is no engine
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    steps: deque[StepView] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    finished: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=MOST_FINISHED))
    _facts_at: float | None = None  # seconds since 1970, by the server's clock
    _counts: deque[tuple[float, EngineStats]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))

    def note(self, news: Event | Away) -> None:
        if isinstance(news, ViewEvent):
            self._note_view(news)
        elif isinstance(news, FactsEvent):
            self.state, self.facts, self._facts_at = "serving", news, None
            self._forget_engine()
        elif isinstance(news, AwayEvent):
            part = f" {100 * news.done / news.total:.0f} %" if news.total else ""
            self.state = (
                f"the engine is {news.state}{part}" if news.state != "failed" else "the engine has failed"
            )
            self._forget_engine()
        else:
            self.state = news.reason
            self._forget_engine()

    def _forget_engine(self) -> None:
        """Charts and finished requests stay; what counted from the start of an engine does not."""
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
                1 - (stats.pages_free + stats.pages_idle) / max(stats.pages_total, 1),
            )
        )

    @property
    def uptime_seconds(self) -> float:
        """Of the server."""
        if self.facts is None or self.view is None:
            return 0.0
        return self.facts.uptime_seconds + self.view.time - (self._facts_at or self.view.time)

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens drawn and prompt tokens computed in a second, of late."""
        if len(self._counts) < 2:
            return 0.0, 0.0
        last = self._counts[-1]
        first = next(one for one in reversed(self._counts) if one is not last)
        for one in reversed(self._counts):
            if last[0] - one[0] > RATE_SECONDS:
                break
            first = one if one is not last else first
        return _rates(first, last)


def _rates(first: tuple[float, EngineStats], last: tuple[float, EngineStats]) -> tuple[float, float]:
    seconds = last[0] - first[0]
    if seconds <= 0:
        return 0.0, 0.0
    sampled = last[1].tokens_sampled - first[1].tokens_sampled
    # A token that was drawn is computed in a later step: what is more than those came from prompts.
    prompts = max(0, last[1].tokens_computed - first[1].tokens_computed - sampled)
    return sampled / seconds, prompts / seconds
