"""Measure how long single callbacks block the event loop, during which no request or probe is answered."""

import asyncio
import logging
import time

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.02
MAX_SECONDS = 0.1  # of CPU time between two iterations of the loop; more is a defect of the server


class LoopWatch:
    """Owned by the event loop that it watches.

    The time between two ticks is that of the longest iteration plus at most one tick. The CPU time of the
    thread counts, because wall time includes the time of other threads and processes.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._wall = self._cpu = 0.0
        self.longest_wall = self.longest_cpu = 0.0  # seconds

    def start(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            logger.info(
                "the event loop was blocked for at most %.0f ms of CPU time (%.0f ms of wall time)",
                self.longest_cpu * 1e3,
                self.longest_wall * 1e3,
            )

    def _tick(self) -> None:
        wall, cpu = time.monotonic(), time.thread_time()
        blocked = cpu - self._cpu
        if blocked > MAX_SECONDS:
            logger.warning("the event loop was blocked for %.0f ms of CPU time", blocked * 1e3)
        self.longest_cpu = max(self.longest_cpu, blocked)
        self.longest_wall = max(self.longest_wall, wall - self._wall - TICK_SECONDS)
        self.start()
