"""Limits of one API key name in units: requests, tokens, streams. Here: of a server that is alone.

`key_leases` has those of several front ends that share the limits.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from octavo.fairness.minute_window import DEFAULT_RETRY_AFTER, MinuteWindow


class LimitReached(Exception):
    """Units do not fit below a limit now."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds  # after which a retry may succeed


class UnitLimit(Protocol):
    """A limit on the units that are in use at the same time."""

    limit: int | None  # None: no limit

    @property
    def num_reserved(self) -> int:
        """The units that are reserved now."""
        ...

    async def reserve(self, units: int) -> int:
        """Reserve units, and return how many: those beyond the whole limit are not reserved.

        Raises LimitReached. If it is cancelled, nothing is reserved.
        """
        ...

    def release(self, units: int) -> None:
        """End the reservation of units that were not spent."""
        ...


class MinuteLimit(UnitLimit, Protocol):
    """A limit on the units that are spent within 60 s."""

    def spend(self, units: int, *, num_reserved: int) -> int | None:
        """Charge units, of which some were reserved, and return a bucket for `refund`; None without a limit.

        What was not reserved is charged whether it fits or not. Then it is a debt.
        """
        ...

    def refund(self, units: int, bucket: int) -> None:
        """Take units back, as if they had never been spent."""
        ...


@dataclass(frozen=True)
class UnitLimits:
    """The limits of one name."""

    requests: MinuteLimit
    tokens: MinuteLimit
    streams: UnitLimit


class LocalMinuteLimit:
    """Owned by the event loop. Nothing here suspends."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._window = MinuteWindow(clock)

    @property
    def limit(self) -> int | None:
        return self._window.limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._window.limit = limit

    @property
    def num_reserved(self) -> int:
        return self._window.num_reserved

    async def reserve(self, units: int) -> int:
        seconds = self._window.seconds_until(units)
        if seconds:
            raise LimitReached(seconds)
        reserved = units if self.limit is None else min(units, self.limit)
        self._window.num_reserved += reserved
        return reserved

    def release(self, units: int) -> None:
        self._window.num_reserved -= units

    def spend(self, units: int, *, num_reserved: int) -> int | None:
        self._window.num_reserved -= num_reserved
        return self._window.charge(units)

    def refund(self, units: int, bucket: int) -> None:
        self._window.refund(units, bucket)


class LocalStreamLimit:
    """Owned by the event loop. Nothing here suspends."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self.num_reserved = 0

    async def reserve(self, units: int) -> int:
        if self.limit is not None and self.num_reserved + units > self.limit:
            raise LimitReached(DEFAULT_RETRY_AFTER)
        self.num_reserved += units
        return units

    def release(self, units: int) -> None:
        self.num_reserved -= units


def local_limits(clock: Callable[[], float] = time.monotonic) -> UnitLimits:
    return UnitLimits(LocalMinuteLimit(clock), LocalMinuteLimit(clock), LocalStreamLimit())
