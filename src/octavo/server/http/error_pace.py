"""Delay the errors of an API key that gets very many of them.

An error costs the event loop about as much as the start of an answer. So a key whose requests are rejected
hundreds of times a second would take from the other keys what fair queues cannot give back. A delayed error
costs nothing while it waits, and each connection of the key has only one.
"""

import time
from collections.abc import Callable

ERRORS_PER_SECOND = 20.0
MAX_BURST = 100  # errors without a delay, after a time with few errors
MAX_DELAY = 5.0  # seconds


class ErrorPace:
    """The errors of one key, or those of all requests without a valid key. Owned by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When the last error would be sent if there were no bursts, as time of the clock:
        #
        #     now - MAX_BURST / ERRORS_PER_SECOND ............ now ......... now + MAX_DELAY
        #     |  sent at once                                  |  delayed   |
        self._due = clock() - MAX_BURST / ERRORS_PER_SECOND

    def delay(self) -> float:
        """Return after how many seconds the next error may be sent."""
        now = self._clock()
        due = max(self._due, now - MAX_BURST / ERRORS_PER_SECOND) + 1 / ERRORS_PER_SECOND
        self._due = min(due, now + MAX_DELAY)
        return max(0.0, self._due - now)
