"""SIGTERM and SIGINT: the first starts an orderly shutdown, the second an immediate one."""

import asyncio
import logging
import os
import signal
import threading
import time

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FORCED_EXIT_SECONDS = 10  # from the last response to a forced exit if something hangs


def block_signals() -> None:
    """Keep signals pending until `ShutdownSignals.listen`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class ShutdownSignals:
    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def force_exit_after(seconds: float) -> None:
    """Exit with code 1 after `seconds`, even if a thread or child process hangs."""

    def end() -> None:
        time.sleep(seconds)
        logger.error("shutdown did not finish within %g s: forcing the exit", seconds)
        os._exit(1)

    threading.Thread(target=end, name="octavo-end", daemon=True).start()
