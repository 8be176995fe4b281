"""A limit on the bytes of requests and responses that the server holds for all clients together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.config import format_size
from octavo.server.http.errors import ApiError, unavailable

SMALL_BYTES = 16 << 10  # requests up to this size may use the reserved part
RESERVED = 8  # 1/RESERVED of the budget is reserved for small requests


class ByteBudget:
    """Owned by the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self.num_held = 0
        self.turn = asyncio.Lock()  # see `Holding.turn`

    def open(self) -> "Holding":
        """Return the holding of one request, which the caller must close."""
        return Holding(self)

    @property
    def max_for_one(self) -> int:
        return self._limit - self._limit // RESERVED

    def has_room(self, num_bytes: int, num_held_by_request: int) -> bool:
        is_small = num_held_by_request + num_bytes <= SMALL_BYTES
        return self.num_held + num_bytes <= (self._limit if is_small else self.max_for_one)


class Holding:
    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Reserve more bytes. Raises an ApiError if the budget is exceeded; earlier reservations stay."""
        if self.num_bytes + num_bytes > self._budget.max_for_one:
            limit = format_size(self._budget.max_for_one)
            message = f"the request and its answer need more than {limit}: ask for less"
            raise ApiError(413, message, code="request_too_large")
        if not self._budget.has_room(num_bytes, self.num_bytes):
            raise unavailable(
                "the server is busy with other large requests: retry later",
                code="too_many_bytes",
                retry_after=2,
            )
        self.num_bytes += num_bytes
        self._budget.num_held += num_bytes

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Serialise slow work on large requests: at most one per iteration of the event loop."""
        async with self._budget.turn:
            await asyncio.sleep(0)
            yield

    def close(self) -> None:
        self._budget.num_held -= self.num_bytes
        self.num_bytes = 0
