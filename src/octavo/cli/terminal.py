"""Where a command writes: answers on stdout, everything about them on stderr."""

import io
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from octavo.errors import ConfigError

logger = logging.getLogger(__name__)


class Style(StrEnum):
    DIM = "2"
    BOLD = "1"
    RED = "31"
    YELLOW = "33"
    GREEN = "32"


@dataclass(frozen=True)
class Terminal:
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]

    @classmethod
    def of_process(cls, environ: Mapping[str, str]) -> "Terminal":
        # An answer must not fail on a character that the terminal cannot show.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(sys.stdin, sys.stdout, sys.stderr, environ)

    @property
    def is_interactive(self) -> bool:
        return self.stdin.isatty() and self.stdout.isatty()

    def colour(self, stream: TextIO) -> bool:
        """Colours only where a person looks, and never against their will (no-color.org)."""
        return stream.isatty() and not self.environ.get("NO_COLOR") and self.environ.get("TERM") != "dumb"

    def styled(self, text: str, style: Style, stream: TextIO) -> str:
        return f"\033[{style}m{text}\033[0m" if self.colour(stream) else text

    def read_all(self) -> str:
        with self._as_text():
            return self.stdin.read()

    def read_line(self) -> str:
        """A line with its newline; empty at the end."""
        with self._as_text():
            return self.stdin.readline()

    @contextmanager
    def _as_text(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"stdin is not {error.encoding} text (byte {error.start}): convert it first"
            ) from error

    def write(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

    def note(self, text: str) -> None:
        self.aside(text)
        self.stderr.write("\n")
        self.stderr.flush()

    def aside(self, text: str) -> None:
        """A piece of a note: no line of its own."""
        self.stderr.write(self.styled(text, Style.DIM, self.stderr))
        self.stderr.flush()

    def say(self, text: str) -> None:
        self.stderr.write(text + "\n")
        self.stderr.flush()

    def warn(self, text: str) -> None:
        self.say(self.styled("warning:", Style.YELLOW, self.stderr) + " " + text)

    def error(self, text: str) -> None:
        self.say(self.styled("error:", Style.RED, self.stderr) + " " + text)


class LogTerminal(Terminal):
    """Of a service whose log is for machines: its problems are lines of that log."""

    def warn(self, text: str) -> None:
        logger.warning("%s", text)

    def error(self, text: str) -> None:
        logger.error("%s", text)


def as_typed(value: object) -> str:
    """A value as a person can give it again."""
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell; the last one is left ragged."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(lines)
