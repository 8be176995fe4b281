"""`octavo top` on a pseudo-terminal."""

import contextlib
import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Protocol

import pytest

from octavo.cli.main import main
from patience import HANG_SECONDS
from server.process import Server, StartServer

pytestmark = pytest.mark.xdist_group("server")

VIEWED = b" tokens, octavo "  # in the first line once a view was received; "serving" may be shown earlier
ENTER, LEAVE = b"\033[?1049h", b"\033[?1049l"


class Terminal:
    """A process on a pseudo-terminal, and its output."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        self.resize(80, 24)
        self._slave = slave
        self._before = termios.tcgetattr(slave)
        command = [sys.executable, "-m", "octavo.cli.main", "top", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environ,
            start_new_session=True,
        )
        self.written = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, *words: bytes, after: int = 0) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while not all(word in self.written[after:] for word in words):
            assert time.monotonic() < deadline, self.written[after:].decode(errors="replace")
            self.read()
            time.sleep(0.01)

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.written += os.read(self._master, 1 << 16)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self) -> int:
        deadline = time.monotonic() + HANG_SECONDS
        while self.process.poll() is None:  # the process cannot end while its output is not read
            assert time.monotonic() < deadline, self.written.decode(errors="replace")
            self.read()
            time.sleep(0.01)
        self.read()
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """Return whether the terminal has its old modes, the main screen and a visible cursor."""
        shown = self.written.rfind(LEAVE) > self.written.rfind(ENTER)
        return shown and b"\033[?25h" in self.written and termios.tcgetattr(self._slave) == self._before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


class StartTerminal(Protocol):
    def __call__(self, *arguments: str, **environ: str) -> Terminal:
        """Start `octavo top` with these arguments."""


@pytest.fixture
def terminal() -> Iterator[StartTerminal]:
    opened: list[Terminal] = []

    def start(*arguments: str, **environ: str) -> Terminal:
        opened.append(Terminal(*arguments, **environ))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_it_shows_the_engine_resizes_and_restores_the_terminal(
    server: Server, terminal: StartTerminal
) -> None:
    top = terminal(server.url)
    top.until(ENTER, b"tiny", b"KV blocks", b"q quit", b"\033[32m")
    server.post("/v1/completions", {"prompt": "abc", "max_tokens": 30, "seed": 1, "ignore_eos": True})
    top.until(b"length, queue")
    mark = len(top.written)
    top.resize(120, 40)
    top.until(b"\033[2J", b"\033[40;1H", after=mark)
    mark = len(top.written)
    top.type(b"t")
    top.until(b"Prefix tree", after=mark)
    top.type(b"q")
    assert top.ended() == 0
    assert top.is_as_before


@pytest.mark.parametrize(("end", "code"), [("keys", 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130)])
def test_the_terminal_is_restored_on_every_exit(
    server: Server, terminal: StartTerminal, end: str | signal.Signals, code: int
) -> None:
    top = terminal(server.url, NO_COLOR="1")
    top.until(ENTER, b"KV blocks")
    os.killpg(top.process.pid, end if isinstance(end, signal.Signals) else signal.SIGINT)
    assert top.ended() == code
    assert top.is_as_before
    assert b"\033[32m" not in top.written, "NO_COLOR was set"


def test_it_waits_for_a_server(start: StartServer, terminal: StartTerminal) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    top = terminal(f"127.0.0.1:{port}")
    top.until(b"no server at", b"serve MODEL")
    server = start("--port", str(port))
    top.until(VIEWED)
    server.terminate()
    top.until(b"no data", after=top.written.rfind(VIEWED))
    top.type(b"q")
    assert top.ended() == 0
    assert top.is_as_before


def test_once_prints_plain_text(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.url, "--once", "--interval", "0.1"]) == 0
    shown = capsys.readouterr().out
    for word in ("tiny", "serving", "tokens/s", "KV blocks", "Steps", "Running", "Finished", "Prefix tree"):
        assert word in shown
    assert "\033" not in shown


def test_the_engine_of_another_replica_can_be_chosen(
    start: StartServer, terminal: StartTerminal, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start("--replicas", "2").wait_until_ready()
    server.wait_for_log("r1: the engine is ready")
    top = terminal(server.url)
    top.until(VIEWED, b"Replicas", b"r0 of 2 (automatic)")
    for key, shown in ((b"n", b"r1 of 2\033"), (b"0", b"r0 of 2 (automatic)"), (b"b", b"r1 of 2\033")):
        mark = len(top.written)
        top.type(key)
        top.until(VIEWED, shown, after=mark)
    assert main(["top", server.url, "--once", "--replica", "r1"]) == 0
    assert "  r1 of 2  " in capsys.readouterr().out
    assert main(["top", server.url, "--once", "--replica", "r9"]) == 1
    assert "r9" in capsys.readouterr().err
    mark = len(top.written)
    assert server.post("/octavo/fleet/drain", {"replica": "r1", "then": "remove"}).status_code == 202
    top.until(b"r1 was removed: the server chooses the replica", VIEWED, after=mark)
    top.type(b"q")
    assert top.ended() == 0
    assert top.is_as_before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["http://127.0.0.1:1", "--once"],
            1,
            "no server at http://127.0.0.1:1: start one with `octavo serve",
        ),
        (["ftp://a", "--once"], 2, "'ftp://a' is not a server address"),
        (["127.0.0.1:1", "--once", "--interval", "99"], 2, "from 0.1 to 10"),
        (["127.0.0.1:1"], 2, "use --once in scripts"),
    ],
)
def test_unusable_arguments_are_reported(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(["top", *arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
