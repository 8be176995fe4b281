"""Owners of keys: replicas in a fixed, random order on a ring.

Each replica has many points on the ring, and a key belongs to the replicas whose points follow it. If a
replica is added or removed, only the keys next to its points change their owners.
"""

from bisect import bisect, insort
from collections.abc import Callable

from octavo.fleet.hashing import hashed

NUM_POINTS = 64  # of each replica


class Ring:
    """Owned by Router."""

    def __init__(self) -> None:
        self._points: list[tuple[int, str]] = []

    def add(self, name: str) -> None:
        for point in _points(name):
            insort(self._points, (point, name))

    def remove(self, name: str) -> None:
        self._points = [point for point in self._points if point[1] != name]

    def owners(self, key: int, count: int, is_usable: Callable[[str], bool]) -> list[str]:
        """Return the first usable owners of a 64-bit key, as far as there are any."""
        found: list[str] = []
        seen: set[str] = set()
        start = bisect(self._points, (key,))
        for i in range(len(self._points)):
            name = self._points[(start + i) % len(self._points)][1]
            if name not in seen:
                seen.add(name)
                if is_usable(name):
                    found.append(name)
                    if len(found) == count:
                        break
        return found


def _points(name: str) -> list[int]:
    return [hashed(name, str(i)) for i in range(NUM_POINTS)]
