"""Updates of requests, from the hub to the tasks that wait for them."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from octavo.frontend.output import RequestOutput, StreamDelta

Update = StreamDelta | RequestOutput

MAX_BUFFERED = 4096  # unread updates


class Recipient(Protocol):
    """Receives the updates of a request."""

    def put(self, update: Update | Exception) -> None:
        """Add an update without waiting. The last one is a `RequestOutput` or an exception."""

    @property
    def is_full(self) -> bool:
        """Whether too many updates are unread, so that the request must be aborted."""


def drain(waiting: deque[Update | Exception]) -> list[Update]:
    """Remove and return all updates. An exception is raised after the updates before it were returned."""
    taken: list[Update] = []
    with contextlib.suppress(IndexError):  # another thread may remove updates too
        while waiting and not (taken and isinstance(waiting[0], Exception)):
            update = waiting.popleft()
            if isinstance(update, Exception):
                raise update
            taken.append(update)
    return taken


class Updates:
    """A mailbox that one task reads, on the event loop that fills it.

    Several requests may share it; their names distinguish the updates. If the text of one could not be
    produced, reading raises its exception.
    """

    def __init__(self) -> None:
        self._waiting: deque[Update | Exception] = deque()
        self._arrived = asyncio.Event()

    def put(self, update: Update | Exception) -> None:
        self._waiting.append(update)
        self._arrived.set()

    def wake(self) -> None:
        """Let `take` return, with an empty list if there are no updates."""
        self._arrived.set()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > MAX_BUFFERED

    async def take(self) -> list[Update]:
        """Wait for updates and return all of them, of any request."""
        await self._arrived.wait()
        self._arrived.clear()
        taken = drain(self._waiting)
        if self._waiting:  # an exception, for the next call to raise
            self._arrived.set()
        return taken

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Yield updates up to the end of one request."""
        while True:
            for update in await self.take():
                yield update
                if isinstance(update, RequestOutput):
                    return
