"""Which front ends watch the engine, and when the next view is due: between steps, rarely enough to be cheap.

A front end takes a lease (`Watch`) and renews it while it has watchers. Without a lease no steps are recorded
and no views are made, which costs one comparison per step.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.view import Watch

REST = 100  # after a view that took t seconds of work, none for REST * t seconds: at most 1 % of the time
MAX_LEASE = 10.0  # seconds


@dataclass(frozen=True)
class Lease:
    until: float
    interval: float


class ViewLeases:
    """The leases of all front ends. Owned by the engine's thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        # CPU time, so that time in which another process had the core does not count.
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._work = work
        self._leases: dict[bytes, Lease] = {}  # by front end
        self._last = -math.inf  # when the last view was sent to all lease holders
        self._rests_until = -math.inf

    @property
    def is_open(self) -> bool:
        return bool(self._leases)

    def watch(self, owner: bytes, message: Watch) -> None:
        if not message.seconds > 0:
            self._leases.pop(owner, None)
            return
        if owner not in self._leases:
            self._last = -math.inf  # a new lease gets a view at once
        until = self._clock() + min(message.seconds, MAX_LEASE)
        self._leases[owner] = Lease(until, max(0.0, message.interval))

    def seconds_to_next(self) -> float:
        """Return the seconds until `take_turn` has something to do."""
        if not self._leases:
            return math.inf
        return max(0.0, min(self._due, *[lease.until for lease in self._leases.values()]) - self._clock())

    def take_turn(self, show: Callable[[tuple[bytes, ...]], None]) -> None:
        """Drop expired leases and, if a view is due, `show` it to the others. Called between steps."""
        now = self._clock()
        self._leases = {owner: lease for owner, lease in self._leases.items() if lease.until > now}
        if not self._leases or now < self._due:
            return
        began = self._work()
        show(tuple(self._leases))
        self._last, self._rests_until = now, now + REST * (self._work() - began)

    @property
    def _due(self) -> float:
        """When the next view is due. Requires at least one lease."""
        interval = min([lease.interval for lease in self._leases.values()])
        return max(self._last + interval, self._rests_until)
