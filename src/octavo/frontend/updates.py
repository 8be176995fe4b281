"""What becomes of requests, on its way to those who wait for it."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

from octavo.frontend.output import RequestOutput, StreamDelta

Update = StreamDelta | RequestOutput

MOST_BUFFERED = 4096  # updates that nobody reads


class Recipient(Protocol):
    """Whoever is told what becomes of a request."""

    def put(self, update: Update | Exception) -> None:
        """Never waits. A request's last update is a `RequestOutput`, or what went wrong with its text."""

    @property
    def is_full(self) -> bool:
        """It is not being read, and its requests are to be ended."""


def drained(waiting: deque[Update | Exception]) -> list[Update]:
    """All that waits. An exception is raised, but only after what came before it has been taken."""
    taken: list[Update] = []
    with contextlib.suppress(IndexError):  # another thread may take from it as well
        while waiting and not (taken and isinstance(waiting[0], Exception)):
            update = waiting.popleft()
            if isinstance(update, Exception):
                raise update
            taken.append(update)
    return taken


class Updates:
    """A mailbox that one task reads, on the event loop that fills it.

    It may be that of several requests, whose names tell their updates apart. If the text of one could not be
    made, reading raises what went wrong.
    """

    def __init__(self) -> None:
        self._waiting: deque[Update | Exception] = deque()
        self._arrived = asyncio.Event()

    def put(self, update: Update | Exception) -> None:
        self._waiting.append(update)
        self._arrived.set()

    def wake(self) -> None:
        """Let `take` return, with nothing if nothing has come."""
        self._arrived.set()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > MOST_BUFFERED

    async def take(self) -> list[Update]:
        """All that has come, of whichever request; waits for something to come."""
        await self._arrived.wait()
        self._arrived.clear()
        taken = drained(self._waiting)
        if self._waiting:  # an exception, which is for the next call
            self._arrived.set()
        return taken

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Up to the end of one request."""
        while True:
            for update in await self.take():
                yield update
                if isinstance(update, RequestOutput):
                    return
