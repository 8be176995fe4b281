"""Record the demonstration of the README: `python tools/terminal_demo.py MODEL [FILE.svg]`.

Two real shells, side by side. On the right a server runs; on the left a client streams the same answer twice.
During the second stream the engine process is killed with SIGKILL. Both shells are recorded with the times of
their output and drawn as an animated SVG; times and details of the server's log are left out. Needs curl, jq
and pgrep.
"""

import argparse
import html
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT = Path(__file__).parents[1] / "docs/assets/demo.svg"
PORT = 8000
QUESTION = "Why is the sky blue?"
KILL_AFTER_CHARACTERS = 120
READY_SECONDS = 120.0
PAUSE = 1.0  # seconds between two commands, and at the end of a line that is typed
TYPING = 0.02  # seconds per character

COLUMNS = 72
CHARACTER, LINE = 7.8, 19  # pixels
MARGIN, GAP, TITLE = 16, 28, 40
LEFT, RIGHT = 0, 1
CLIENT = f"""ask() {{ curl -sN localhost:{PORT}/v1/chat/completions -d '{{
  "messages": [{{"role": "user", "content": "{QUESTION}"}}],
  "seed": 7, "temperature": 0.7, "max_tokens": 110, "stream": true}}' \\
  -H 'Content-Type: application/json' | sed -un 's/^data: {{/{{/p' |
  jq -rj --unbuffered '.choices[0].delta.content // empty'; }}"""
# Left out of the picture: details of the engine's start, and one line per request.
DETAILS = re.compile(r"POST|weights|KV cache|a token takes|GiB /|sequences of|event loop|playground")
TIME = re.compile(r"^[-\d]+ [:\d]+ ")


@dataclass(frozen=True)
class Piece:
    at: float  # seconds since the start of the recording
    pane: int
    text: str
    is_typed: bool = False


@dataclass
class Recording:
    """Written by the threads that read the shells; a list's append is atomic."""

    pieces: list[Piece] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, pane: int, text: str, *, is_typed: bool = False) -> None:
        self.pieces.append(Piece(time.monotonic() - self.began, pane, text, is_typed))

    def type(self, pane: int, command: str) -> None:
        """Show a command as if it were typed, one character at a time."""
        self.add(pane, "$ ", is_typed=True)
        for character in command:
            time.sleep(TYPING)
            self.add(pane, character, is_typed=True)
        time.sleep(PAUSE / 2)
        self.add(pane, "\n", is_typed=True)

    def shown(self, pane: int) -> str:
        return "".join(piece.text for piece in self.pieces if piece.pane == pane)


def record(model: str) -> list[Piece]:
    recording = Recording()
    recording.type(RIGHT, "octavo serve $MODEL")
    program = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(PORT)]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"}
    ) as server:
        reader = threading.Thread(target=_follow_log, args=(server, recording), daemon=True)
        reader.start()
        try:
            _wait_for(lambda: "ready at" in recording.shown(RIGHT))
            _use_client(recording, server.pid)
        finally:
            server.terminate()
            server.wait()
    return recording.pieces


def _use_client(recording: Recording, server_pid: int) -> None:
    for number, name in enumerate(("one.txt", "two.txt")):
        if number == 0:
            for line in CLIENT.splitlines():
                recording.add(LEFT, ("$ " if line.startswith("ask") else "> ") + line + "\n", is_typed=True)
            time.sleep(2 * PAUSE)
        recording.type(LEFT, f"ask | tee {name}")
        _stream(recording, name, server_pid if number == 1 else None)
        recording.add(LEFT, "\n")
        time.sleep(PAUSE)
    recording.type(LEFT, "cmp one.txt two.txt && echo bit for bit the same")
    checked = _shell("cmp one.txt two.txt && echo bit for bit the same")
    recording.add(LEFT, checked.communicate()[0].decode())
    time.sleep(3 * PAUSE)


def _stream(recording: Recording, name: str, kill_child_of: int | None) -> None:
    with _shell(f"{CLIENT}\nask | tee {shlex.quote(name)}") as client:
        assert client.stdout is not None
        num_characters = 0
        while text := os.read(client.stdout.fileno(), 4096).decode(errors="replace"):
            recording.add(LEFT, text)
            num_characters += len(text)
            if kill_child_of is not None and num_characters > KILL_AFTER_CHARACTERS:
                engine = subprocess.check_output(["pgrep", "-P", str(kill_child_of), "-f", "octavo.engine"])
                recording.add(RIGHT, f"$ kill -9 {engine.decode().split()[0]}\n", is_typed=True)
                os.kill(int(engine.split()[0]), 9)
                kill_child_of = None


def _shell(script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _follow_log(server: "subprocess.Popen[bytes]", recording: Recording) -> None:
    assert server.stdout is not None
    for line in server.stdout:
        text = TIME.sub("", line.decode(errors="replace"))
        if not DETAILS.search(text):
            recording.add(RIGHT, text)


def _wait_for(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_done():
        assert time.monotonic() < deadline, "the server did not become ready in time"
        time.sleep(0.05)


# -- drawing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextRun:
    """Text on one line that appears at one time."""

    at: float
    pane: int
    row: int
    column: int
    text: str
    is_typed: bool


def runs_of(pieces: list[Piece]) -> list[TextRun]:
    """Lay the text out in the rows of each pane, and merge what appears within a tenth of a second."""
    runs: list[TextRun] = []
    for pane in (LEFT, RIGHT):
        row = column = 0
        for piece in (piece for piece in pieces if piece.pane == pane):
            first = re.match(r"\S*", piece.text.strip())
            if column and column + len(first[0] if first else "") + 1 > COLUMNS:  # tokens are mostly words
                row, column = row + 1, 0
            for character in piece.text if column else piece.text.lstrip(" "):
                if character == "\n" or column == COLUMNS:
                    row, column = row + 1, 0
                if character == "\n":
                    continue
                last = runs[-1] if runs else None
                if (
                    last is not None
                    and (last.pane, last.row, last.is_typed) == (pane, row, piece.is_typed)
                    and last.column + len(last.text) == column
                    and piece.at - last.at < 0.1
                ):
                    runs[-1] = TextRun(last.at, pane, row, last.column, last.text + character, last.is_typed)
                else:
                    runs.append(TextRun(piece.at, pane, row, column, character, piece.is_typed))
                column += 1
    return runs


def drawing(pieces: list[Piece]) -> str:
    runs = runs_of(pieces)
    rows = max(run.row for run in runs) + 1
    seconds = max(piece.at for piece in pieces) + 4 * PAUSE
    width = 2 * MARGIN + 2 * COLUMNS * CHARACTER + GAP
    height = TITLE + rows * LINE + MARGIN
    keyframes, texts = [], []
    for number, run in enumerate(runs):
        share = 100 * run.at / seconds
        keyframes.append(
            f"@keyframes a{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}"
        )
        x = MARGIN + run.pane * (COLUMNS * CHARACTER + GAP) + run.column * CHARACTER
        y = TITLE + run.row * LINE + 14
        kind = ' class="typed"' if run.is_typed else ""
        texts.append(
            f'<text{kind} x="{x:.1f}" y="{y}" textLength="{len(run.text) * CHARACTER:.1f}"'
            f' style="animation-name:a{number}">{html.escape(run.text)}</text>'
        )
    divider = MARGIN + COLUMNS * CHARACTER + GAP / 2
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"
 aria-label="A client and a server. The engine is killed during a stream; the answer stays the same.">
<!-- Recorded by tools/terminal_demo.py -->
<style>
text {{ font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre;
  animation: {seconds:.1f}s linear infinite }}
.typed {{ fill: #7ee787 }}
.title {{ fill: #8b949e; animation: none }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none }} }}
{"".join(keyframes)}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<path d="M{divider:.0f} 0V{height}" stroke="#30363d"/>
<text class="title" x="{MARGIN}" y="22">client</text>
<text class="title" x="{divider + GAP / 2:.0f}" y="22">server</text>
{chr(10).join(texts)}
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT)
    options = parser.parse_args()
    options.file.write_text(drawing(record(options.model)), encoding="utf-8")


if __name__ == "__main__":
    main()
