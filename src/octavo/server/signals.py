"""SIGTERM and SIGINT: the first asks for an orderly end, the second for one at once."""

import asyncio
import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
