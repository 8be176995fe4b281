"""Start an engine, send jobs to it, freeze it while others are measured, and end it.

While one engine is measured, no other may use the processor. Loading takes a minute, so waiting engines stay
in memory and are stopped by a signal (SIGSTOP).
"""

import contextlib
import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from benchmarks.peers.engines import PeerEngine, Start, environment_of

START_SECONDS = 600.0
END_SECONDS = 20.0
STOP_SECONDS = 5.0


class EngineFailed(Exception):
    """An engine did not start, or has ended. The message names its log."""


class Running:
    """An engine in its own processes. They are frozen between measurements; `end` ends all of them."""

    def __init__(self, engine: PeerEngine, start: Start, log: Path) -> None:
        self.engine = engine
        self.url = f"http://127.0.0.1:{start.port}"
        self.command = list(engine.command(start))
        self._log = log
        with log.open("wb") as written:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if not engine.has_http else written,
                stderr=written,
                env=environment_of(engine, start),
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        if not self.engine.has_http:
            self.read_line()
            return
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self._is_healthy():
                return
            time.sleep(0.2)
        raise EngineFailed(f"{self.engine.name} did not start: see {self._log}")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, job: Any) -> Any:
        """Send a line to an engine without HTTP and return its reply."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        return self.read_line()

    def read_line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineFailed(f"{self.engine.name} has ended: see {self._log}")
        return json.loads(line)

    def freeze(self) -> None:
        """Stop the processes, parents first, so that no parent sees an unresponsive child."""
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        # A process stops when a thread is next scheduled; until then it disturbs the engine that is measured.
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and not all(map(_is_stopped, family)):
            time.sleep(0.002)

    def thaw(self) -> None:
        """Resume the processes, children first, for the same reason."""
        for process in reversed(self._family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def end(self) -> None:
        family = self._family()
        self.thaw()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(family, END_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def _family(self) -> list[psutil.Process]:
        """Return the process and all its descendants, parents before children."""
        try:
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))
    except psutil.NoSuchProcess:
        return True
