"""What becomes of requests, on its way to the one task that reads it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from octavo.frontend.output import RequestOutput, StreamDelta

Update = StreamDelta | RequestOutput


class Updates:
    """Of one request or several; the last of each is a `RequestOutput`. (Or reading raises, if the front end
    itself failed.)"""

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
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def take(self) -> list[Update]:
        """All that has come, of whichever request; waits for something to come."""
        await self._arrived.wait()
        self._arrived.clear()
        taken: list[Update] = []
        while self._waiting:
            update = self._waiting.popleft()
            if isinstance(update, Exception):
                raise update
            taken.append(update)
        return taken

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Up to the end of one request."""
        while True:
            for update in await self.take():
                yield update
                if isinstance(update, RequestOutput):
                    return
