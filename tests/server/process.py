"""Runs `octavo serve` in a separate process on a free port."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import httpx
import openai

from data.json_types import Json
from engine_children import engine_children
from patience import HANG_SECONDS
from server.recording import octavo_command, problems_in
from server.yardstick import Yardstick, check_event_loop


class Server:
    """A process of `octavo serve`. Call `stop` at the end: it checks that every accepted request conforms to
    the API description that the server publishes, unless `records` is false."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        *flags: str,
        environ: dict[str, str] | None = None,
        records: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is a command that runs the rest of its arguments, for example to limit the server."""
        self.log_path = folder / f"server-{time.monotonic_ns()}.log"
        self.requests_path = self.log_path.with_suffix(".requests")
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short: sockets have short names
        self._yardstick = Yardstick()
        program = octavo_command(self.requests_path if records else None)
        command = [*prefix, *program, "serve", str(model), "--port", "0", *flags]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(self.temporary)} | (environ or {}),
            )
        self.port = int(self.wait_for_log(r"listening on \S+, port (\d+)")[1])

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def engine_pid(self) -> int | None:
        """None between two engines."""
        engines = list(engine_children(self.process.pid))
        assert len(engines) <= 1, engines
        return engines[0] if engines else None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for_log(self, pattern: str, seconds: float = HANG_SECONDS) -> re.Match[str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.log):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        raise AssertionError(f"{pattern!r} is not in the log of the server:\n{self.log}")

    def wait_until_ready(self) -> "Server":
        self.wait_for_log("is ready at")
        return self

    def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=HANG_SECONDS, headers=headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return httpx.get(self.url + path, timeout=HANG_SECONDS, headers=headers)

    def client(
        self,
        *,
        api_key: str = "none",
        max_retries: int = 0,
        timeout: float | openai.NotGiven = openai.NOT_GIVEN,
    ) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=api_key, max_retries=max_retries, timeout=timeout
        )

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        self._yardstick.stop()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            self.process.send_signal(signal.SIGTERM)  # a second signal stops at once
        try:
            self.process.wait(HANG_SECONDS)
            shutil.rmtree(self.temporary)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        check_event_loop(self.log, self._yardstick)
        problems = problems_in(self.requests_path)
        assert not problems, "\n".join(problems)


class StartServer(Protocol):
    """Starts a server with flags of `octavo serve` and does not wait until it is ready."""

    def __call__(self, *flags: str, model: Path = ..., environ: dict[str, str] | None = None) -> Server: ...


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def processor_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
