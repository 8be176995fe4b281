"""One limit of one API key name, of which this front end leases units from a keeper (see `fleet.budget`).

    granted by the keeper:   |   reserved by requests   |   spare   |        spent        |
                             |<------------- held ---------------->|

A request takes spare units. If there are not enough, it asks the keeper, for a little more than it needs. So
most requests need no round trip. Spare units go back to the keeper when they are not used.

Without an answer of the keeper, a front end uses its share: the limit divided by the number of front ends.
"""

import asyncio
import math
from dataclasses import dataclass

from octavo.fairness.minute_window import DEFAULT_RETRY_AFTER
from octavo.fairness.recent_use import RecentUse
from octavo.fleet.budget import BudgetKind, BudgetUse, Grant, GrantStatus
from octavo.link.budget_messages import AskBudget, GrantBudget
from octavo.server.budget_keepers import SETTLE_SECONDS, Keepers
from octavo.server.unit_limits import LimitReached

SPARE = 40  # up to 1/SPARE of a limit is spare
RETURN_SECONDS = 1.0  # without use, until spare units are returned
REFRESH_SECONDS = 5.0  # between reports of units that are held; less than a keeper's HELD_SECONDS
FULL_SECONDS = 0.1  # during which a rejection also holds for the next requests, without a round trip
ENDED_SECONDS = 0.05  # for the report that a stream has ended, if its client is faster than the report
ALONE_SECONDS = 1.0  # until a keeper without room for another budget is asked again


class LeaseBook:
    """The leases that have something to report. Shared by `KeyLeases` and its leases."""

    def __init__(self) -> None:
        self.active: dict[KeyLease, None] = {}  # held units, or units spent within the last 60 s
        self.due: dict[KeyLease, None] = {}  # to be reported soon
        self.woken = asyncio.Event()

    def report_soon(self, lease: "KeyLease") -> None:
        self.active[lease] = None
        self.due[lease] = None
        self.woken.set()


@dataclass(frozen=True)
class Acknowledged:
    """What a keeper knows about a lease."""

    keeper: str
    number: int
    held: int
    spent: int
    at: float


class KeyLease:
    """A `MinuteLimit`, or a `UnitLimit` if its units are streams. Owned by the event loop."""

    def __init__(self, name: str, kind: BudgetKind, keepers: Keepers, book: LeaseBook) -> None:
        self.name = name
        self.kind = kind
        self.limit: int | None = None
        self._keepers = keepers
        self._book = book
        self._clock = keepers.clock
        self.num_reserved = 0
        self._num_spare = 0
        self._num_spent = 0  # ever, less refunds
        self._num_wanted = 0  # by requests that wait for the keeper
        self._own = RecentUse(keepers.clock)
        self._used_at = -math.inf
        self._keeper: str | None = None
        self._epoch = -1  # of `_keeper`
        self._settled_at = -math.inf
        self._alone_until = -math.inf
        self._acknowledged: Acknowledged | None = None
        self._asking: asyncio.Task[None] | None = None
        self._full_units, self._full_until, self._free_at = 0, -math.inf, 0.0  # the last rejection

    # -- requests ----------------------------------------------------------------------------------------

    async def reserve(self, units: int) -> int:
        wanted = self._capped(units)
        self._num_wanted += wanted
        try:
            while self.limit is not None and self._num_spare < self._capped(units):
                await self._obtain(self._capped(units))
        finally:
            self._num_wanted -= wanted
        reserved = self._capped(units)
        if self.limit is not None:
            self._num_spare -= reserved
            self._note_use()
        self.num_reserved += reserved
        return reserved

    def release(self, units: int) -> None:
        self.num_reserved -= units
        self._keep_spare(units)

    def spend(self, units: int, *, num_reserved: int) -> int | None:
        self.num_reserved -= num_reserved
        if self.limit is None:
            return None
        self._num_spare -= min(self._num_spare, units - num_reserved)
        self._num_spent += units
        self._note_use()
        return self._own.add(units)

    def refund(self, units: int, bucket: int) -> None:
        units = self._own.refund(units, bucket)
        self._num_spent -= units
        self._keep_spare(units)

    # -- reports -----------------------------------------------------------------------------------------

    @property
    def is_asking(self) -> bool:
        """Whether a grant may be in transit. A report would not contain it."""
        return self._asking is not None

    @property
    def is_due(self) -> bool:
        """Whether the keeper must get a report."""
        keeper = self.keeper()
        if keeper is None or self.limit is None:
            return False
        known = self._known_to(keeper)
        if known is None:
            return bool(self._held or self._own.total())
        is_old = bool(self._held) and self._clock() >= known.at + REFRESH_SECONDS
        return is_old or (known.held, known.spent) != (self._held, self._num_spent)

    @property
    def is_idle(self) -> bool:
        return not (self._held or self._own.total() or self.is_asking or self.is_due)

    def return_unused(self) -> None:
        """Give up spare units that were not used for some time. The next report returns them."""
        if not self._num_wanted and self._clock() >= self._used_at + RETURN_SECONDS:
            self._num_spare = 0

    def keeper(self) -> str | None:
        """Return the present keeper. If it has changed, units are leased only when it has settled."""
        if self._epoch != self._keepers.epoch:
            self._epoch = self._keepers.epoch
            keeper = self._keepers.transport.keeper_of(self.name)
            if keeper != self._keeper:
                self._keeper = keeper
                self._settled_at = self._keepers.changed_at + SETTLE_SECONDS
        return self._keeper

    def use(self, keeper: str) -> BudgetUse:
        """Return what the keeper must know: everything, or what has changed since it was reported."""
        assert self.limit is not None
        known = self._known_to(keeper)
        num_new = self._own.total() if known is None else self._num_spent - known.spent
        return BudgetUse(
            self.name,
            self.kind,
            self.limit,
            held=self._held,
            spent=self._num_spent,
            recent=self._own.newest(num_new),
            is_complete=known is None,
        )

    def note_reply(self, keeper: str, number: int, use: BudgetUse, grant: Grant) -> None:
        """Record what the keeper knows after its reply to a message with this use."""
        known = self._known_to(keeper)
        if keeper != self.keeper() or (known is not None and number < known.number):
            return
        if grant.status in (GrantStatus.GRANTED, GrantStatus.FULL):
            self._acknowledged = Acknowledged(
                keeper, number, use.held + grant.units, use.spent, self._clock()
            )
            return
        self._acknowledged = None
        if grant.status is GrantStatus.OVERLOADED or use.is_complete:
            self._alone_until = self._clock() + ALONE_SECONDS

    # -- the keeper --------------------------------------------------------------------------------------

    @property
    def _held(self) -> int:
        return self.num_reserved + self._num_spare

    @property
    def _max_spare(self) -> int:
        return 0 if self.limit is None else self.limit // SPARE

    def _capped(self, units: int) -> int:
        return units if self.limit is None else min(units, self.limit)

    def _note_use(self) -> None:
        self._used_at = self._clock()
        self._book.active[self] = None

    def _known_to(self, keeper: str) -> Acknowledged | None:
        known = self._acknowledged
        return known if known is not None and known.keeper == keeper else None

    def _keep_spare(self, units: int) -> None:
        """Keep units that are no longer needed, as far as they may be used soon. Return the rest at once."""
        if self.limit is None or not units:
            return
        room = self._max_spare + self._num_wanted - self._num_spare
        kept = 0 if self._reachable_keeper() is None else max(0, min(units, room))
        self._num_spare += kept
        self._full_until = -math.inf
        if kept < units:
            self._book.report_soon(self)

    def _reachable_keeper(self) -> str | None:
        keeper = self.keeper()
        if keeper in self._keepers.unreachable or self._clock() < self._alone_until:
            return None
        return keeper

    async def _obtain(self, needed: int) -> None:
        """Add to the spare units, or wait for something that may add to them. Raises LimitReached."""
        keeper, now = self._reachable_keeper(), self._clock()
        if keeper is None:
            self._use_share(needed)
        elif now < self._settled_at:
            await asyncio.sleep(self._settled_at - now)
        elif now < self._full_until and needed >= self._full_units:
            raise LimitReached(self._free_at - now)
        else:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask(keeper, needed))
            asking = self._asking
            await asyncio.wait((asking,))  # does not cancel it: other requests may wait for it too
            asking.result()

    def _use_share(self, needed: int) -> None:
        assert self.limit is not None
        share = self.limit // max(1, self._keepers.transport.num_front_ends)
        if self._own.total() + self.num_reserved + needed > share:
            raise LimitReached(DEFAULT_RETRY_AFTER)
        self._num_spare = max(self._num_spare, needed)

    async def _ask(self, keeper: str, needed: int) -> None:
        try:
            grant = await self._ask_once(keeper, needed)
            if self.kind is BudgetKind.STREAMS and grant.status is GrantStatus.FULL:
                await asyncio.sleep(ENDED_SECONDS)
                grant = await self._ask_once(keeper, needed)
        finally:
            self._asking = None
        if grant.status is GrantStatus.FULL:
            now = self._clock()
            self._free_at = now + grant.seconds
            self._full_units, self._full_until = needed, now + min(grant.seconds, FULL_SECONDS)

    async def _ask_once(self, keeper: str, needed: int) -> Grant:
        if self.limit is None or keeper != self.keeper():
            return Grant(GrantStatus.UNKNOWN)
        number, use = self._keepers.next_number(), self.use(keeper)
        units = max(0, needed - self._num_spare)
        extra = self._max_spare + max(0, self._num_wanted - needed)
        reply = await self._keepers.exchange(keeper, AskBudget(number, use, units, extra))
        if not isinstance(reply, GrantBudget) or keeper != self.keeper():
            # A grant of the previous keeper is void: the present one does not know it.
            return Grant(GrantStatus.UNKNOWN)
        self.note_reply(keeper, number, use, reply.grant)
        self._num_spare += reply.grant.units
        self._note_use()  # also if the request was cancelled in the meantime
        return reply.grant
