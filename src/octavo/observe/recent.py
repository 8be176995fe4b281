"""Latencies of the last seconds. Kept only while a watcher is connected: see `RequestMetrics.recent`."""

from collections import deque

from octavo.observe.histogram import Histogram
from octavo.view import Latency

WINDOW_SECONDS = 10
# Each edge is 1.1 times the previous one, from 0.1 ms to several minutes: quantiles are within 5 %.
EDGES = tuple([1e-4 * 1.1**number for number in range(160)])


class RecentTimes:
    """Holds one histogram per second of the window; old ones are dropped."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Histogram]] = deque(maxlen=WINDOW_SECONDS)

    def observe(self, value: float, now: float) -> None:
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Histogram(EDGES)))
        self._seconds[-1][1].observe(value)

    def quantiles(self, now: float, *fractions: float) -> list[float | None]:
        """Return quantiles of the values observed in the window before `now`."""
        first = int(now) - WINDOW_SECONDS
        recent = [histogram for second, histogram in self._seconds if second > first]
        total = sum([histogram.count for histogram in recent])
        if not total:
            return [None] * len(fractions)
        edges = [edge for edge, _ in recent[0].cumulative()]
        sums = [sum(counts) for counts in zip(*[[n for _, n in h.cumulative()] for h in recent], strict=True)]
        return [_quantile(edges, sums, fraction * total) for fraction in fractions]


class RecentLatencies:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self.time_to_first_token = RecentTimes()
        self.inter_token = RecentTimes()

    def latency(self, now: float) -> Latency:
        first = self.time_to_first_token.quantiles(now, 0.5, 0.99)
        return Latency(*first, *self.inter_token.quantiles(now, 0.5, 0.99))


def _quantile(edges: list[float], cumulative: list[int], rank: float) -> float:
    """Return the value of a rank, interpolated linearly between two edges."""
    at = next(index for index, count in enumerate(cumulative) if count >= rank)
    if at == len(edges) - 1:  # beyond the last edge
        return edges[-2]
    before, low = (cumulative[at - 1], edges[at - 1]) if at else (0, 0.0)
    return low + (edges[at] - low) * (rank - before) / (cumulative[at] - before)
