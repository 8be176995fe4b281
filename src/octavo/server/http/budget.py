"""Bytes of requests and answers that the server holds at once, for all clients together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.config import format_size
from octavo.server.http.errors import ApiError, unavailable

SMALL_BYTES = 16 << 10  # a request with no more than this is let in when larger ones are not
RESERVED = 8  # one part in so many is for small ones


class ByteBudget:
    """Owned by the event loop."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.num_held = 0
        self.turn = asyncio.Lock()  # see `Holding.turn`

    def open(self) -> "Holding":
        """For one request. To be closed in the end."""
        return Holding(self)

    @property
    def most_for_one(self) -> int:
        return self._most - self._most // RESERVED

    def has_room(self, num_bytes: int, held_already: int) -> bool:
        is_small = held_already + num_bytes <= SMALL_BYTES
        return self.num_held + num_bytes <= (self._most if is_small else self.most_for_one)


class Holding:
    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Raises an ApiError if all clients together hold too much. What was taken stays taken."""
        if self.num_bytes + num_bytes > self._budget.most_for_one:
            most = format_size(self._budget.most_for_one)
            why = f"the request and its answer need more than {most}: ask for less"
            raise ApiError(413, why, code="request_too_large")
        if not self._budget.has_room(num_bytes, self.num_bytes):
            raise unavailable(
                "the server is busy with other large requests; send this one again later",
                code="too_many_bytes",
                retry_after=2,
            )
        self.num_bytes += num_bytes
        self._budget.num_held += num_bytes

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """For what takes a large request some time: one of them in each turn of the event loop."""
        async with self._budget.turn:
            await asyncio.sleep(0)
            yield

    def close(self) -> None:
        self._budget.num_held -= self.num_bytes
        self.num_bytes = 0
