"""What becomes of one request, on its way to the one task that reads it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from octavo.frontend.output import RequestOutput, StreamDelta

Update = StreamDelta | RequestOutput


class Updates:
    """The last is a `RequestOutput`. (Or iterating raises, if the front end itself failed.)"""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._waiting: deque[Update | Exception] = deque()
        self._arrived = asyncio.Event()

    def put(self, update: Update | Exception) -> None:
        self._waiting.append(update)
        self._arrived.set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def __aiter__(self) -> AsyncIterator[Update]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                update = self._waiting.popleft()
                if isinstance(update, Exception):
                    raise update
                yield update
                if isinstance(update, RequestOutput):
                    return
