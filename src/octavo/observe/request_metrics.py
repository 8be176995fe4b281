"""Metrics of requests. A sequence is one answer to one prompt, so n=2 is two sequences."""

from collections import Counter
from dataclasses import dataclass, field

from octavo.observe.histogram import LONG, SHORT, Histogram
from octavo.observe.recent import RecentLatencies
from octavo.protocol import Timings


@dataclass
class RequestMetrics:
    """Owned by the event loop."""

    http: Counter[tuple[str, ...]] = field(default_factory=Counter)  # by route and status class
    finished: Counter[str] = field(default_factory=Counter)  # sequences, by finish reason
    prompt_tokens: int = 0
    generation_tokens: int = 0
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(LONG))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(SHORT))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(LONG))
    queue_time: Histogram = field(default_factory=lambda: Histogram(LONG))
    prefill_time: Histogram = field(default_factory=lambda: Histogram(LONG))
    decode_time: Histogram = field(default_factory=lambda: Histogram(LONG))
    recent: RecentLatencies | None = None  # set while a watcher is connected

    def answered(self, route: str, status: int | None) -> None:
        self.http[route, "none" if status is None else f"{status // 100}xx"] += 1

    def note_timings(self, timings: Timings) -> None:
        self.queue_time.observe(timings.queue)
        self.prefill_time.observe(timings.prefill)
        self.decode_time.observe(timings.decode)
