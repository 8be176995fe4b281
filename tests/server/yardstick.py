"""Measures the speed of this machine while a server runs, as a reference for blocking of the event loop.

On a slow or busy machine, the event loop and the reference take longer by the same factor.
"""

import re
import threading
import time

from octavo.server.loop_watch import MAX_SECONDS

COUNT_TO = 50_000  # a few milliseconds
COUNT_SECONDS = 0.005  # on the machine for which MAX_SECONDS was chosen
BETWEEN_SECONDS = 0.2
MAX_COUNTS = MAX_SECONDS / COUNT_SECONDS  # maximum time for which the event loop may be blocked, in counts


class Yardstick:
    """Counts repeatedly in a separate thread. `slowest` is valid after `stop` has returned."""

    def __init__(self) -> None:
        self.slowest = 0.0  # seconds of processor time
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _count(self) -> None:
        is_over = False
        while not is_over:  # also once after the end
            is_over = self._is_over.wait(BETWEEN_SECONDS)
            began, sum_of_bits = time.thread_time(), 0
            for number in range(COUNT_TO):
                sum_of_bits += number & 1
            self.slowest = max(self.slowest, time.thread_time() - began)


def check_event_loop(log: str, yardstick: Yardstick) -> None:
    """Fail if the event loop was blocked for more than twice the limit."""
    pattern = r"the event loop was blocked for (?:at most )?(\d+) ms"
    held = [int(number) for number in re.findall(pattern, log)]
    if held:
        num_counts = max(held) / 1e3 / yardstick.slowest
        figures = f"{max(held)} ms, {num_counts / MAX_COUNTS:.2f} of the bar"
        print(f"the event loop was blocked for {figures}")
        assert num_counts <= 2 * MAX_COUNTS, f"the event loop was blocked for {figures}:\n{log}"
