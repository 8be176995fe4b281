"""Full-screen use of a terminal, whose previous state is always restored."""

import os
import select
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from octavo.top.paint import Line, rendered

ENTER = "\033[?1049h\033[?25l\033[2J"  # alternate screen, no cursor, cleared
EXIT = "\033[?25h\033[?1049l"
HOME = "\033[H"
CLEAR_TO_END_OF_LINE = "\033[K"
MIN_SIZE = (20, 5)


class Screen:
    """A context manager that draws only the lines that have changed."""

    def __init__(self, stdin: TextIO, stdout: TextIO, *, colour: bool) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._colour = colour
        self._before: list[Any] = []
        self._drawn: list[str] = []
        self._size = (0, 0)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._stdin)
        tty.setcbreak(self._stdin)
        self._write(ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)
        self._write(EXIT)

    @property
    def size(self) -> tuple[int, int]:
        """The current numbers of columns and lines, each at least that of `MIN_SIZE`."""
        columns, rows = os.get_terminal_size(self._stdout.fileno())
        return max(columns, MIN_SIZE[0]), max(rows, MIN_SIZE[1])

    @property
    def has_resized(self) -> bool:
        """Whether the size changed since the last `draw`."""
        return self.size != self._size

    def draw(self, lines: Sequence[Line]) -> None:
        size = self.size
        if size != self._size:
            self._size, self._drawn = size, []
            self._write("\033[2J")
        fresh = [rendered(line, size[0], colour=self._colour) for line in lines[: size[1]]]
        changed = [
            f"\033[{number + 1};1H{text}{CLEAR_TO_END_OF_LINE}"
            for number, text in enumerate(fresh)
            if number >= len(self._drawn) or text != self._drawn[number]
        ]
        self._drawn = fresh
        if changed:
            self._write("".join(changed) + HOME)

    def key(self, seconds: float) -> str:
        """Return the next key, or nothing after `seconds`. Escape sequences (arrow keys) are dropped."""
        ready, _, _ = select.select([self._stdin], [], [], seconds)
        if not ready:
            return ""
        typed = os.read(self._stdin.fileno(), 64).decode(errors="replace")
        return "" if typed.startswith("\033") else typed[-1:]

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()


def is_terminal(stdin: TextIO, stdout: TextIO) -> bool:
    return stdin.isatty() and stdout.isatty() and sys.platform != "win32"
