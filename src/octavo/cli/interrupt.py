"""Ctrl-C that ends an answer and nothing else."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopOnInterrupt:
    """Within the context, the first Ctrl-C only sets `requested`; the second raises KeyboardInterrupt.

    An exception in the middle of an engine step could leave it between two states. So the answer ends at the
    next token, where the engine is whole, and the program can go on.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals there only
            self._previous = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
