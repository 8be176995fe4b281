"""SIGTERM and SIGINT: the first asks for an orderly end, the second for one at once."""

import asyncio
import signal


class Stopping:
    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.note)

    def note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
