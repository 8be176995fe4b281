"""Read chat messages from a terminal, with readline and history, or from a pipe."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.cli.terminal import Terminal, TextStyle

HISTORY_LINES = 1000
FENCE = '"""'


def history_path(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "octavo" / "chat_history"


class MessageReader:
    """Reads one message after another; raises EOFError at the end of the input.

    A message is one line or several: a line that ends in a backslash continues on the next line, and triple
    quotes enclose a message of several lines.
    """

    def __init__(self, terminal: Terminal, commands: Sequence[str]) -> None:
        self._terminal = terminal
        self._history = history_path(terminal.environ)
        if terminal.is_interactive:
            self._set_up_readline(commands)

    def read(self) -> str:
        line = self._line("> ")
        if line.lstrip().startswith(FENCE):
            return self._fenced(line.lstrip().removeprefix(FENCE))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(self._next_line())
        return "\n".join(lines).strip()

    def close(self) -> None:
        """Save the history, readable by its owner only. Errors are ignored."""
        if not self._terminal.is_interactive:
            return
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(self._history)

    def _fenced(self, line: str) -> str:
        lines = [line.rstrip()]
        while not lines[-1].endswith(FENCE):
            lines.append(self._next_line(at_end=FENCE).rstrip())
        lines[-1] = lines[-1].removesuffix(FENCE)
        return "\n".join(lines).strip("\n")

    def _next_line(self, at_end: str = "") -> str:
        """Return the next line of a message, or `at_end` at the end of the input."""
        try:
            return self._line(". ")
        except EOFError:
            return at_end

    def _line(self, prompt: str) -> str:
        if self._terminal.is_interactive:
            return input(self._readline_prompt(prompt))
        line = self._terminal.read_line()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def _readline_prompt(self, prompt: str) -> str:
        if not self._terminal.colour(self._terminal.stdout):
            return prompt
        # \001 and \002 enclose text that takes no columns on the line, for readline.
        return f"\001\033[{TextStyle.GREEN}m\002{prompt}\001\033[0m\002"

    def _set_up_readline(self, commands: Sequence[str]) -> None:
        try:
            import readline
        except ImportError:  # not available on every platform; input() works without it
            return
        with contextlib.suppress(OSError):
            readline.read_history_file(self._history)

        def complete(text: str, state: int) -> str | None:
            matches = [command for command in commands if command.startswith(text)]
            return matches[state] if text.startswith("/") and state < len(matches) else None

        readline.set_completer_delims(" ")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")
