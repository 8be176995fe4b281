"""Histograms of plain numbers. One thread owns a histogram."""

from bisect import bisect_left
from collections.abc import Iterator

# Seconds. Releases never change the edges of a list, because dashboards sum over servers.
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)


class Histogram:
    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self.sum += value

    def add(self, other: "Histogram") -> None:
        """Add the values of another histogram with the same edges."""
        self._counts = [mine + its for mine, its in zip(self._counts, other._counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each edge with the number of values up to it; the last edge is infinite."""
        total = 0
        for edge, count in zip((*self._edges, float("inf")), self._counts, strict=True):
            total += count
            yield edge, total
