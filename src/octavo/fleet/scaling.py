"""How many replicas a fleet should have, by the time that requests wait.

    queue seconds > target, for a while    more replicas: in proportion to the wait, at most twice as many
    no request waits, and the others have room, for a longer while    one replica fewer
    otherwise    no change

Between the two is a wide range without any change, so the number does not alternate under constant load.
"""

from dataclasses import dataclass
from math import ceil

UP_AFTER = 3.0  # seconds that requests wait too long, before replicas are added
MAX_OCCUPIED = 0.5  # part of their slots that the remaining replicas may need, when one is removed
QUIET = 0.1  # part of the target that requests may wait then


@dataclass(frozen=True)
class ScalingRule:
    """What the operator wants. `minimum` and `maximum` are equal if the number is fixed."""

    minimum: int
    maximum: int
    target_seconds: float = 2.0  # that requests may wait
    down_after: float = 300.0  # seconds without waiting requests, before a replica is removed


@dataclass(frozen=True)
class FleetLoad:
    """The sum over all front ends, as the replicas report it."""

    queue_seconds: float  # that a new request would wait until an engine begins with it
    num_sequences: int
    max_running: int  # sequences that one replica computes at a time


class Scaler:
    """Owned by the fleet's actor. Has no clock of its own."""

    def __init__(self, rule: ScalingRule) -> None:
        self._rule = rule
        self._busy_since: float | None = None
        self._quiet_since: float | None = None

    def wanted(self, now: float, num_wanted: int, num_ready: int, load: FleetLoad | None) -> int:
        """Return how many replicas there should be, given that `num_wanted` were wanted until now. `load` is
        None if no replica has reported yet."""
        rule = self._rule
        num_wanted = min(max(num_wanted, rule.minimum), rule.maximum)
        if load is None or num_ready > num_wanted:  # a replica is being ended, which changes the load
            self._busy_since = self._quiet_since = None
            return num_wanted
        # A replica that is being started will take some of the load, unless there is no room for it.
        is_busy = num_ready == num_wanted and load.queue_seconds > rule.target_seconds
        self._busy_since = _since(self._busy_since, now, is_busy)
        num_others = min(num_wanted - 1, num_ready)
        has_room = load.num_sequences <= MAX_OCCUPIED * load.max_running * num_others
        is_quiet = load.queue_seconds <= QUIET * rule.target_seconds and has_room
        self._quiet_since = _since(self._quiet_since, now, is_quiet)
        if self._busy_since is not None and now - self._busy_since >= UP_AFTER:
            factor = min(2.0, load.queue_seconds / rule.target_seconds)
            num_wanted = min(ceil(num_wanted * factor), rule.maximum)
            self._busy_since = None
        elif self._quiet_since is not None and now - self._quiet_since >= rule.down_after:
            num_wanted = max(num_wanted - 1, rule.minimum)
            self._quiet_since = None
        return num_wanted


def _since(earlier: float | None, now: float, holds: bool) -> float | None:
    """Return since when a condition holds; None: it does not."""
    if not holds:
        return None
    return now if earlier is None else earlier
