"""The leases of all API key names in this front end, and the reports to their keepers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from octavo.fleet.budget import BudgetKind, Grant
from octavo.link.budget_messages import MAX_USES, NotedBudget, ReportBudget
from octavo.server.budget_keepers import BudgetTransport, Keepers
from octavo.server.key_lease import KeyLease, LeaseBook
from octavo.server.unit_limits import UnitLimits

SCAN_SECONDS = 0.25  # between looks at all active leases
BATCH_SECONDS = 0.01  # minimum time between reports of released units


class KeyLeases:
    """Owned by the event loop."""

    def __init__(self, transport: BudgetTransport, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._keepers = Keepers(transport, clock)
        self._book = LeaseBook()
        self._reporting: dict[str, asyncio.Task[None]] = {}  # by keeper
        transport.watch_keepers(self._note_change)

    def limits_of(self, name: str) -> UnitLimits:
        requests, tokens, streams = (
            KeyLease(name, kind, self._keepers, self._book)
            for kind in (BudgetKind.REQUESTS, BudgetKind.TOKENS, BudgetKind.STREAMS)
        )
        return UnitLimits(requests, tokens, streams)

    async def run(self) -> None:
        """Report what is spent and return what is not used, until it is cancelled."""
        scan_at = self._clock()
        try:
            while True:
                if self._clock() >= scan_at:
                    self._scan()
                    scan_at = self._clock() + SCAN_SECONDS
                self._send_reports()
                await asyncio.sleep(BATCH_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, scan_at - self._clock())):
                        await self._book.woken.wait()
                self._book.woken.clear()
        finally:
            for task in self._reporting.values():
                task.cancel()

    def _note_change(self) -> None:
        """Report everything that is active to keepers that are new."""
        self._keepers.note_change()
        for lease in self._book.active:
            self._book.report_soon(lease)

    def _scan(self) -> None:
        for lease in self._book.active:
            lease.return_unused()
            if lease.is_due:
                self._book.due[lease] = None
        self._book.active = {lease: None for lease in self._book.active if not lease.is_idle}

    def _send_reports(self) -> None:
        due, self._book.due = self._book.due, {}
        reports: dict[str, list[KeyLease]] = {keeper: [] for keeper in self._keepers.unreachable}
        for lease in due:
            keeper = lease.keeper()
            if keeper is None or not lease.is_due:
                continue
            leases = reports.setdefault(keeper, [])
            if lease.is_asking or keeper in self._reporting or len(leases) == MAX_USES:
                self._book.due[lease] = None
            else:
                leases.append(lease)
        for keeper, leases in reports.items():
            if keeper not in self._reporting:
                self._reporting[keeper] = asyncio.create_task(self._report(keeper, leases))

    async def _report(self, keeper: str, leases: list[KeyLease]) -> None:
        """Report to a keeper. What fails is due again at the next scan."""
        number = self._keepers.next_number()
        uses = [(lease, lease.use(keeper)) for lease in leases if lease.is_due and not lease.is_asking]
        try:
            message = ReportBudget(number, tuple(use for _, use in uses))
            reply = await self._keepers.exchange(keeper, message)
        finally:
            del self._reporting[keeper]
        if isinstance(reply, NotedBudget):
            for (lease, use), status in zip(uses, reply.statuses, strict=False):
                lease.note_reply(keeper, number, use, Grant(status))
        if self._book.due:
            self._book.woken.set()
