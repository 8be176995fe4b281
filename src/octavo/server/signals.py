"""SIGTERM and SIGINT: the first asks for an orderly end, the second for one at once."""

import asyncio
import logging
import os
import signal
import threading
import time

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_SECONDS = 10  # from the last answer to the end of the process, however something hangs


def hold_signals() -> None:
    """What comes from now on waits until somebody listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class Stopping:
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


def end_surely(seconds: float) -> None:
    """So much later this process is no more, whatever thread or child of it hangs."""

    def end() -> None:
        time.sleep(seconds)
        logger.error("the server did not end by itself, and is ended")
        os._exit(1)

    threading.Thread(target=end, name="octavo-end", daemon=True).start()
