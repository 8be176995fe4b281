"""What was used within the last 60 s, without a limit."""

from collections import deque
from collections.abc import Callable

from octavo.fairness.minute_window import BUCKETS_KEPT, BUCKETS_PER_SECOND, bucket_of


class RecentUse:
    """Units used within the last 60 s, in the buckets of `MinuteWindow`. Owned by a `KeyLease`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: deque[list[int]] = deque()  # index and units, oldest first
        self._num_used = 0  # the sum of the buckets

    def total(self) -> int:
        self._advance()
        return self._num_used

    def add(self, units: int) -> int:
        """Add units, and return their bucket for `refund`."""
        index = bucket_of(self._clock())
        if not self._buckets or self._buckets[-1][0] != index:
            self._advance()
            self._buckets.append([index, 0])
        self._buckets[-1][1] += units
        self._num_used += units
        return index

    def refund(self, units: int, index: int) -> int:
        """Remove units from a bucket, and return how many there were."""
        self._advance()
        bucket = next((bucket for bucket in self._buckets if bucket[0] == index), None)
        if bucket is None:
            return 0
        units = min(units, bucket[1])
        bucket[1] -= units
        self._num_used -= units
        return units

    def newest(self, units: int) -> tuple[tuple[int, int], ...]:
        """Return the ages in milliseconds of the units that were used last, each with its number of units.

        An age is that of the end of the bucket, so no unit is older than it was reported.
        """
        self._advance()
        now, found = self._clock(), list[tuple[int, int]]()
        for index, used in reversed(self._buckets):
            if units <= 0:
                break
            if used:
                age = now - (index + 1) / BUCKETS_PER_SECOND
                found.append((max(0, int(age * 1000)), min(units, used)))
                units -= used
        return tuple(found)

    def _advance(self) -> None:
        index = bucket_of(self._clock())
        while self._buckets and self._buckets[0][0] + BUCKETS_KEPT <= index:
            self._num_used -= self._buckets.popleft()[1]
