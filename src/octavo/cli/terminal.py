"""Terminal input and output of the commands: results on stdout, everything else on stderr."""

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


class TextStyle(StrEnum):
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
        # A character that the terminal cannot encode must not end an answer with an error.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return cls(sys.stdin, sys.stdout, sys.stderr, environ)

    @property
    def is_interactive(self) -> bool:
        return self.stdin.isatty() and self.stdout.isatty()

    def colour(self, stream: TextIO) -> bool:
        """Whether to use colours: only on a terminal, and not if NO_COLOR is set (no-color.org)."""
        return stream.isatty() and not self.environ.get("NO_COLOR") and self.environ.get("TERM") != "dumb"

    def styled(self, text: str, style: TextStyle, stream: TextIO) -> str:
        return f"\033[{style}m{text}\033[0m" if self.colour(stream) else text

    def read_all(self) -> str:
        with self._as_text():
            return self.stdin.read()

    def read_line(self) -> str:
        """Return a line with its newline, or an empty string at the end of the input."""
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
        """Write a piece of a note, without a newline."""
        self.stderr.write(self.styled(text, TextStyle.DIM, self.stderr))
        self.stderr.flush()

    def message(self, text: str) -> None:
        self.stderr.write(text + "\n")
        self.stderr.flush()

    def warn(self, text: str) -> None:
        self.message(self.styled("warning:", TextStyle.YELLOW, self.stderr) + " " + text)

    def error(self, text: str) -> None:
        self.message(self.styled("error:", TextStyle.RED, self.stderr) + " " + text)


class LogTerminal(Terminal):
    """The terminal of a service with a JSON log: warnings and errors become log lines."""

    def warn(self, text: str) -> None:
        logger.warning("%s", text)

    def error(self, text: str) -> None:
        logger.error("%s", text)


def as_typed(value: object) -> str:
    """Return a value in the form that the command line accepts."""
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows with aligned columns, each as wide as its widest cell; the last one is not padded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(lines)
