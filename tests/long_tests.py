"""Prints which tests are running for long. Without it, the log of a run that hangs does not show where."""

import threading
import time

import pytest

LONG_SECONDS = 240.0
PRINT_SECONDS = 60.0


class LongTests:
    """With xdist, in the controlling process, which learns of each start and end of a test.

    The thread that prints sees `_running` while tests are added and removed: it copies it first.
    """

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._running: dict[str, float] = {}
        self._began = time.monotonic()
        self._ended = threading.Event()

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._watch, name="long-tests", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    def pytest_sessionfinish(self) -> None:
        self._ended.set()

    def lines(self, now: float) -> list[str]:
        began = sorted(self._running.copy().items(), key=lambda item: item[1])
        return [
            f"after {(now - self._began) / 60:.0f} min: {name} has run for {(now - since) / 60:.0f} min"
            for name, since in began
            if now - since >= LONG_SECONDS
        ]

    def _watch(self) -> None:
        while not self._ended.wait(PRINT_SECONDS):
            for line in self.lines(time.monotonic()):
                self._terminal.write_line(line)
