"""Limits on units per minute, such as requests or tokens. Has no clock of its own."""

import copy
import math
from collections import deque
from collections.abc import Callable

BUCKETS_PER_SECOND = 4
# A bucket is kept until 60 s after its end, so that no 60 s contain more than the limit.
BUCKETS_KEPT = 60 * BUCKETS_PER_SECOND + 1
# If only the end of another request can help. That time is unknown.
DEFAULT_RETRY_AFTER = 1.0  # seconds


class MinuteWindow:
    """Units charged within the last 60 s, in buckets of 0.25 s. Owned by the limit that it enforces.

    A charge beyond the limit becomes a debt. It is paid when old buckets leave the window, so the rate is
    that of the limit in the long run.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.limit: int | None = None
        self.num_reserved = 0  # units that may still be charged by requests that were accepted
        self._clock = clock
        self._buckets: deque[tuple[int, int]] = deque()  # index and units, oldest first
        self._num_used = 0  # the sum of the buckets
        self._num_owed = 0

    def seconds_until(self, units: int) -> float:
        """Return the time until `units` fit, or 0 if they fit now. More than the limit count as the limit."""
        if self.limit is None:
            return 0.0
        now = self._clock()
        self._advance(bucket_of(now))
        if self._fits(units):
            return 0.0
        ahead = copy.copy(self)
        ahead._buckets = self._buckets.copy()
        ahead._skip_cycles((ahead._num_excess(units) - 1) // self.limit)
        left = bucket_of(now)
        while ahead._buckets and not ahead._fits(units):
            left = ahead._drop_oldest()
        seconds = left / BUCKETS_PER_SECOND - now
        # Whole milliseconds, rounded up: the units fit after this time.
        return max(
            (math.floor(seconds * 1000) + 1) / 1000, 0.0 if ahead._fits(units) else DEFAULT_RETRY_AFTER
        )

    def num_free(self) -> int:
        """Return how many units fit now. Needs a limit."""
        self._advance(bucket_of(self._clock()))
        return max(0, -self._num_excess(0))

    def is_empty(self) -> bool:
        """Return whether nothing is charged and nothing is owed."""
        if self.limit is not None:
            self._advance(bucket_of(self._clock()))
        return not (self._num_used or self._num_owed)

    def charge(self, units: int, *, age: float = 0.0) -> int | None:
        """Charge units, used `age` seconds ago, and return their bucket for `refund`; None without a limit.

        Units that were used more than 60 s ago are not charged.
        """
        if self.limit is None:
            return None
        now = self._clock()
        self._advance(bucket_of(now))
        index = bucket_of(now - age)
        if index + BUCKETS_KEPT > bucket_of(now):
            fitting = min(units, self._room)
            self._add(index, fitting)
            self._num_owed += units - fitting
        return index

    def refund(self, units: int, index: int) -> None:
        """Remove units from a bucket, as if they had never been charged."""
        for position, (other, charged) in enumerate(self._buckets):
            if other == index:
                units = min(units, charged)
                self._buckets[position] = index, charged - units
                self._num_used -= units

    def refund_oldest(self, units: int) -> None:
        """Remove units whose bucket is unknown. The other units leave the window no earlier than before."""
        while units and self._buckets:
            index, charged = self._buckets[0]
            refunded = min(units, charged)
            self._num_used -= refunded
            units -= refunded
            if refunded == charged:
                self._buckets.popleft()
            else:
                self._buckets[0] = index, charged - refunded

    @property
    def _room(self) -> int:
        assert self.limit is not None
        return max(0, self.limit - self._num_used)

    def _num_excess(self, units: int) -> int:
        """Return how many units must leave the window before `units` fit."""
        assert self.limit is not None
        num_taken = self._num_used + self._num_owed + self.num_reserved
        return num_taken + min(units, self.limit) - self.limit

    def _fits(self, units: int) -> bool:
        return self._num_excess(units) <= 0

    def _advance(self, index: int) -> None:
        if self._num_owed:
            self._skip_cycles((index - self._buckets[-1][0]) // BUCKETS_KEPT if self._buckets else 0)
        while self._buckets and self._buckets[0][0] + BUCKETS_KEPT <= index:
            self._drop_oldest()
        if self._num_owed:  # the limit may have been raised
            self._pay(index)

    def _skip_cycles(self, max_cycles: int) -> None:
        """Drop each bucket up to `max_cycles` times, at the cost of one time.

        While the window is full and the debt exceeds it, an equal bucket replaces every bucket that leaves.
        """
        assert self.limit is not None
        cycles = min(max_cycles, self._num_owed // self.limit)
        if self._num_used == self.limit and cycles > 0:
            self._num_owed -= cycles * self.limit
            self._buckets = deque((index + cycles * BUCKETS_KEPT, units) for index, units in self._buckets)

    def _drop_oldest(self) -> int:
        """Remove the oldest bucket, pay debts with its room, and return the index at which this happens."""
        index, units = self._buckets.popleft()
        self._num_used -= units
        self._pay(index + BUCKETS_KEPT)
        return index + BUCKETS_KEPT

    def _pay(self, index: int) -> None:
        paid = min(self._num_owed, self._room)
        self._num_owed -= paid
        self._add(index, paid)

    def _add(self, index: int, units: int) -> None:
        if not units:
            return
        self._num_used += units
        position = len(self._buckets)
        while position and self._buckets[position - 1][0] > index:  # only of units that were used earlier
            position -= 1
        if position and self._buckets[position - 1][0] == index:
            self._buckets[position - 1] = index, self._buckets[position - 1][1] + units
        else:
            self._buckets.insert(position, (index, units))


def bucket_of(now: float) -> int:
    """Return the bucket of a time."""
    return math.floor(now * BUCKETS_PER_SECOND)
