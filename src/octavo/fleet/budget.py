"""Budgets of limits that hold over several front ends. One replica's agent keeps the budgets of a name.

A front end leases units before it admits a request, and reports what it has spent of them:

    limit = what was spent within the last 60 s  +  what front ends hold  +  what is free
                     (requests, tokens)              (leased, not spent)

Units that a front end holds count until it reports that they are spent or returned. So all front ends
together stay within the limit, however late the reports are.

A front end reports states (what it holds, and how much it has ever spent), not changes. So a report may be
lost or repeated. After the death of a keeper, the reports of all front ends restore its budgets.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated

import msgspec

from octavo.fairness.minute_window import BUCKETS_KEPT, MinuteWindow
from octavo.fleet.hashing import hashed

HELD_SECONDS = 15.0  # without a report; after it, the units that a front end held are free again
REMEMBERED_SECONDS = 75.0  # without a report; longer than units are in a window
MAX_SHARES = 1 << 15  # pairs of a budget and a front end, of one keeper
MIN_SWEEP = 256
SWEEP_SECONDS = 1.0  # minimum time between two sweeps of a full keeper

Units = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class BudgetKind(StrEnum):
    REQUESTS = "requests"
    TOKENS = "tokens"
    STREAMS = "streams"  # are held and never spent


class BudgetUse(msgspec.Struct, frozen=True):
    """The state of one limit of one name in one front end."""

    name: Annotated[str, msgspec.Meta(max_length=128)]
    kind: BudgetKind
    limit: Annotated[int, msgspec.Meta(ge=1, le=1 << 48)]
    held: Units  # leased, and neither spent nor returned
    spent: Units  # since the front end started, less refunds
    # The units that were spent last: their age in milliseconds and their number, newest first.
    recent: Annotated[tuple[tuple[Units, Units], ...], msgspec.Meta(max_length=BUCKETS_KEPT)] = ()
    is_complete: bool = False  # `recent` has the last 60 s, not only what was spent since the last report


class GrantStatus(StrEnum):
    GRANTED = "granted"
    FULL = "full"
    UNKNOWN = "unknown"  # send the use again, complete
    OVERLOADED = "overloaded"  # the keeper has too many budgets already


class Grant(msgspec.Struct, frozen=True):
    status: GrantStatus
    units: int = 0
    seconds: float = 0.0  # until the units fit, if it is full


def keeper_of(name: str, replicas: Iterable[str]) -> str | None:
    """Return the replica whose agent keeps the budgets of a name, or None if there is no replica.

    If a replica is added or removed, only the names that it keeps change their keeper.
    """
    return max(replicas, key=lambda replica: (hashed("budget", name, replica), replica), default=None)


class FrontEndShare:
    """What one front end has of one budget. Changed by its `NameBudget` only."""

    __slots__ = ("held", "number", "reported_at", "spent")

    def __init__(self, spent: int) -> None:
        self.spent = spent
        self.held = 0
        self.number = -1  # of the last message
        self.reported_at = 0.0


class NameBudget:
    """One limit of one name. Owned by `BudgetKeeper`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._window = MinuteWindow(clock)
        self.shares: dict[str, FrontEndShare] = {}  # by front end

    def note(self, front_end: str, number: int, use: BudgetUse) -> bool:
        """Record a use. Return False if it must be sent again, complete."""
        self._window.limit = use.limit
        share = self.shares.get(front_end)
        if share is None:
            if not use.is_complete:
                return False
            num_recent = sum(units for _, units in use.recent)
            share = self.shares[front_end] = FrontEndShare(use.spent - num_recent)
        if number <= share.number:  # it was overtaken by a newer message
            return False
        self._charge(use, use.spent - share.spent)
        share.number, share.spent, share.held = number, use.spent, use.held
        share.reported_at = self._clock()
        return True

    def grant(self, front_end: str, units: int, extra: int) -> Grant:
        """Lease `units` to a front end, and up to `extra` more; or nothing, if `units` do not fit."""
        self._window.num_reserved = self._num_held()
        seconds = self._window.seconds_until(units)
        if seconds:
            return Grant(GrantStatus.FULL, seconds=seconds)
        granted = max(units, min(units + extra, self._window.num_free()))
        self.shares[front_end].held += granted
        return Grant(GrantStatus.GRANTED, granted)

    def drop(self, front_end: str) -> None:
        """Free what a front end holds. What it has spent remains."""
        if front_end in self.shares:
            self.shares[front_end].held = 0

    def forget_old(self) -> None:
        """Forget front ends whose units have left the window."""
        oldest = self._clock() - REMEMBERED_SECONDS
        self.shares = {name: share for name, share in self.shares.items() if share.reported_at >= oldest}

    @property
    def has_charges(self) -> bool:
        """Whether units are charged or owed."""
        return not self._window.is_empty()

    def _charge(self, use: BudgetUse, units: int) -> None:
        if units < 0:
            self._window.refund_oldest(-units)
        for age, used in use.recent:
            if units <= 0:
                return
            self._window.charge(min(units, used), age=age / 1000)
            units -= used

    def _num_held(self) -> int:
        oldest = self._clock() - HELD_SECONDS
        for share in self.shares.values():
            if share.reported_at < oldest:
                share.held = 0
        return sum(share.held for share in self.shares.values())


class BudgetKeeper:
    """The budgets that one agent keeps. Owned by the agent's event loop.

    `front_end` names a process: a front end that is started again has another name.
    """

    def __init__(self, clock: Callable[[], float], max_shares: int = MAX_SHARES) -> None:
        self._clock = clock
        self._max_shares = max_shares
        self._budgets: dict[tuple[str, BudgetKind], NameBudget] = {}
        self._num_shares = 0
        self._sweep_at = MIN_SWEEP  # shares
        self._swept = clock() - SWEEP_SECONDS

    def __len__(self) -> int:
        return len(self._budgets)

    def ask(self, front_end: str, number: int, use: BudgetUse, *, units: int, extra: int) -> Grant:
        """Record a use, and lease `units` and up to `extra` more if `units` fit.

        More than the limit count as the limit. `number` increases with each message of the front end.
        """
        status = self.report(front_end, number, use)
        if status is not GrantStatus.GRANTED:
            return Grant(status)
        return self._budgets[use.name, use.kind].grant(front_end, min(units, use.limit), extra)

    def report(self, front_end: str, number: int, use: BudgetUse) -> GrantStatus:
        """Record a use. Return UNKNOWN if it must be sent again, complete, and OVERLOADED without room."""
        budget = self._budgets.get((use.name, use.kind))
        if budget is None or front_end not in budget.shares:
            if not self._has_room():
                return GrantStatus.OVERLOADED
            budget = self._budgets.setdefault((use.name, use.kind), NameBudget(self._clock))
        num_before = len(budget.shares)
        is_noted = budget.note(front_end, number, use)
        self._num_shares += len(budget.shares) - num_before
        return GrantStatus.GRANTED if is_noted else GrantStatus.UNKNOWN

    def drop_front_end(self, front_end: str) -> None:
        """Free what a front end holds, because its lease has ended."""
        for budget in self._budgets.values():
            budget.drop(front_end)

    def _has_room(self) -> bool:
        now = self._clock()
        num_entries = max(self._num_shares, len(self._budgets))
        is_full = num_entries >= self._max_shares
        if num_entries >= self._sweep_at or (is_full and now >= self._swept + SWEEP_SECONDS):
            self._swept = now
            self._sweep()
        return max(self._num_shares, len(self._budgets)) < self._max_shares

    def _sweep(self) -> None:
        """Forget what is idle. O(1) amortised per new share. A full keeper also forgets old debts."""
        for budget in self._budgets.values():
            budget.forget_old()
        self._num_shares = sum(len(budget.shares) for budget in self._budgets.values())
        is_full = len(self._budgets) >= self._max_shares
        self._budgets = {
            key: budget
            for key, budget in self._budgets.items()
            if budget.shares or (budget.has_charges and not is_full)
        }
        self._sweep_at = max(MIN_SWEEP, 2 * self._num_shares, 2 * len(self._budgets))
