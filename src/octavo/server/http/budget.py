"""A limit on the memory that request bodies and unread answers use, of all clients together.

Each tenant has a guaranteed part of it (see `SharedRoom`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.config import format_size
from octavo.fairness.shared_room import SharedRoom
from octavo.fairness.tenant import ONLY_TENANT, Tenant
from octavo.fairness.turns import FairTurns
from octavo.server.http.errors import ApiError, too_many

SMALL_BYTES = 16 << 10  # requests up to this size may use the reserved part
RESERVED = 8  # 1/RESERVED of the budget is reserved for small requests
RETRY_AFTER = 2.0  # seconds


class ByteBudget:
    """Owned by the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._room = SharedRoom(max_bytes)
        self._max_large = max_bytes - max_bytes // RESERVED
        self.turns = FairTurns()  # see `Holding.turn`

    @property
    def num_held(self) -> int:
        return self._room.num_used

    def open(self) -> "Holding":
        """Return the holding of one request, which the caller must close."""
        return Holding(self)

    def max_for_one(self, tenant: Tenant = ONLY_TENANT) -> int:
        """Return how much one request of the tenant may need at most."""
        return self._room.max_for(tenant, self._max_large)

    def has_room(self, tenant: Tenant, num_bytes: int, *, is_small: bool) -> bool:
        return self._room.fits(tenant, num_bytes, None if is_small else self._max_large)

    def take(self, tenant: Tenant, num_bytes: int) -> None:
        self._room.take(tenant, num_bytes)

    def give(self, tenant: Tenant, num_bytes: int) -> None:
        self._room.give(tenant, num_bytes)


class Holding:
    """The bytes of one request. Its tenant must be set before the first `take`, if there are keys."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.tenant = ONLY_TENANT
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Reserve more bytes. Raises an ApiError if the budget is exceeded; earlier reservations stay."""
        if not num_bytes:
            return
        limit = self._budget.max_for_one(self.tenant)
        if self.num_bytes + num_bytes > limit:
            message = f"the request and its answer need more than {format_size(limit)}: ask for less"
            raise ApiError(413, message, code="request_too_large")
        is_small = self.num_bytes + num_bytes <= SMALL_BYTES
        if not self._budget.has_room(self.tenant, num_bytes, is_small=is_small):
            of_what = "the other large requests of this key" if self.tenant.name else "other large requests"
            raise too_many(
                f"the server is busy with {of_what}: retry later", RETRY_AFTER, code="too_many_bytes"
            )
        self.num_bytes += num_bytes
        self._budget.take(self.tenant, num_bytes)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Serialise slow work on large requests: at most one per iteration of the event loop."""
        async with self._budget.turns.turn(self.tenant):
            await asyncio.sleep(0)
            yield

    def close(self) -> None:
        if self.num_bytes:
            self._budget.give(self.tenant, self.num_bytes)
            self.num_bytes = 0
