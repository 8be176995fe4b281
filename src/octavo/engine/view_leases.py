"""Who watches the engine, and when the next view is made: between steps, seldom enough to be cheap.

A front end takes a lease (`Watch`) and renews it while it has watchers of its own. Without a lease nothing is
recorded and no view is made: it costs one comparison a step.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.view import Watch

REST = 100  # a view that took t seconds of work is followed by none for REST * t: 1 % of the time at most
LONGEST_LEASE = 10.0  # seconds, whatever is asked for


@dataclass(frozen=True)
class Lease:
    until: float
    interval: float


class ViewLeases:
    """Of all front ends. Owned by the engine's thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        # What a view costs is its own work: not the time in which another process had the core.
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._work = work
        self._leases: dict[bytes, Lease] = {}  # by front end
        self._last = -math.inf  # when a view was made for all who have a lease
        self._rests_until = -math.inf

    @property
    def is_open(self) -> bool:
        return bool(self._leases)

    def watch(self, owner: bytes, message: Watch) -> None:
        if not message.seconds > 0:
            self._leases.pop(owner, None)
            return
        if owner not in self._leases:
            self._last = -math.inf  # who comes new need not wait
        until = self._clock() + min(message.seconds, LONGEST_LEASE)
        self._leases[owner] = Lease(until, max(0.0, message.interval))

    def seconds_to_next(self) -> float:
        """Until `take_turn` has something to do."""
        if not self._leases:
            return math.inf
        return max(0.0, min(self._due, *[lease.until for lease in self._leases.values()]) - self._clock())

    def take_turn(self, show: Callable[[tuple[bytes, ...]], None]) -> None:
        """Between two steps: forget the leases that are over; if a view is due, `show` it to the others."""
        now = self._clock()
        self._leases = {owner: lease for owner, lease in self._leases.items() if lease.until > now}
        if not self._leases or now < self._due:
            return
        began = self._work()
        show(tuple(self._leases))
        self._last, self._rests_until = now, now + REST * (self._work() - began)

    @property
    def _due(self) -> float:
        """While there is a lease."""
        interval = min([lease.interval for lease in self._leases.values()])
        return max(self._last + interval, self._rests_until)
