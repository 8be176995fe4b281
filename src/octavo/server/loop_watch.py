"""How long the event loop is held by one thing: in that time nobody is answered, and no probe."""

import asyncio
import logging
import time

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.02
MOST_SECONDS = 0.1  # of processor time between two turns of the loop; more is a defect of ours


class LoopWatch:
    """Owned by the event loop that it watches.

    What it measures between two ticks is the longest turn and at most a tick more. Processor time of the
    thread is what counts: wall time includes what others have taken.
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
                "the event loop was held for %.0f ms of processor time at most (%.0f ms by the clock)",
                self.longest_cpu * 1e3,
                self.longest_wall * 1e3,
            )

    def _tick(self) -> None:
        wall, cpu = time.monotonic(), time.thread_time()
        held = cpu - self._cpu
        if held > MOST_SECONDS:
            logger.warning("the event loop was held for %.0f ms of processor time", held * 1e3)
        self.longest_cpu = max(self.longest_cpu, held)
        self.longest_wall = max(self.longest_wall, wall - self._wall - TICK_SECONDS)
        self.start()
