"""A server's life: started, asked, stopped in its tracks while others are measured, ended.

While one engine is measured no other may use the processor. Loading takes a minute, so those who wait keep
their memory and are stopped by a signal (SIGSTOP).
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
from benchmarks.peers.engines import Engine, Start, environment_of

START_SECONDS = 600.0
END_SECONDS = 20.0
STOP_SECONDS = 5.0


class Failed(Exception):
    """An engine did not start, or has ended. Says where to look."""


class Running:
    """An engine in processes of its own. Frozen between measurements; `end` ends all of them."""

    def __init__(self, engine: Engine, start: Start, log: Path) -> None:
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
        raise Failed(f"{self.engine.name} did not start: see {self._log}")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, job: Any) -> Any:
        """For an engine without HTTP: a line there and a line back."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        return self.read_line()

    def read_line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.engine.name} has ended: see {self._log}")
        return json.loads(line)

    def freeze(self) -> None:
        """Parents first, so that none sees a child that does not answer."""
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        # The signal is taken when a thread is next scheduled: until then it disturbs whoever is measured.
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and not all(map(_is_stopped, family)):
            time.sleep(0.002)

    def thaw(self) -> None:
        """Children first, for the same reason."""
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
        """The process and all its descendants, parents before children."""
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
