"""A lock for asyncio that is fair between tenants."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from octavo.fairness.queue import FairQueue
from octavo.fairness.tenant import Tenant


class FairTurns:
    """One holder at a time; the next turn goes by the seconds that tenants have held it. Owned by the event
    loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_held = False

    @asynccontextmanager
    async def turn(self, tenant: Tenant) -> AsyncIterator[None]:
        entry = self._queue.put(tenant, asyncio.get_running_loop().create_future())
        if not self._is_held:
            self._pass_on()
        started: float | None = None
        try:
            await entry.item
            started = self._clock()
            yield
        finally:
            if not entry.item.done() or entry.item.cancelled():  # it was still waiting
                self._queue.remove(entry)
            else:  # a turn that was granted, but cancelled before it began, costs nothing
                self._queue.end(entry, 0.0 if started is None else self._clock() - started)
                self._pass_on()

    def _pass_on(self) -> None:
        """Grant the turn to the next waiter. It is never free in between, so nothing can overtake."""
        entry = self._queue.take()
        while entry is not None and entry.item.cancelled():  # its task has not run since
            self._queue.end(entry, 0.0)
            entry = self._queue.take()
        self._is_held = entry is not None
        if entry is not None:
            entry.item.set_result(None)
