"""How much this machine gets done while a server runs: what holds the event loop is measured against it.

A machine that is slow, or whose processor others use, takes longer for the loop and for the yardstick alike.
"""

import re
import threading
import time

from octavo.server.loop_watch import MOST_SECONDS

COUNT_TO = 50_000  # a few milliseconds
COUNT_SECONDS = 0.005  # on the machine for which MOST_SECONDS was chosen
BETWEEN_SECONDS = 0.2
MOST_COUNTS = MOST_SECONDS / COUNT_SECONDS  # what the event loop may be held for, as a number of counts


class Yardstick:
    """Counts again and again, in a thread of its own. `slowest` may be read when `stop` has returned."""

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
        while not is_over:  # once after the end, too
            is_over = self._is_over.wait(BETWEEN_SECONDS)
            began, sum_of_bits = time.thread_time(), 0
            for number in range(COUNT_TO):
                sum_of_bits += number & 1
            self.slowest = max(self.slowest, time.thread_time() - began)


def check_event_loop(log: str, yardstick: Yardstick) -> None:
    """Twice the bar is a defect of ours."""
    held = [int(number) for number in re.findall(r"the event loop was held for (\d+) ms", log)]
    if held:
        num_counts = max(held) / 1e3 / yardstick.slowest
        figures = f"{max(held)} ms, {num_counts / MOST_COUNTS:.2f} of the bar"
        print(f"the event loop was held for {figures}")
        assert num_counts <= 2 * MOST_COUNTS, f"the event loop was held for {figures}:\n{log}"
