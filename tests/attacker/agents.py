"""The replicas of a fleet under attack: `octavo replica` at addresses of loopback, as machines."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.agents import KeyFiles
from chaos.ending import end
from octavo.link.fleet_key import FleetKey
from patience import HANG_SECONDS

FIRST_HOST = 2  # 127.0.0.2: clients have ports of 127.0.0.1, so none has the port of an agent that restarts


def stop_at_once(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM twice: the second one ends what the first has begun."""
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)


class AttackedAgent:
    """One agent after the other, at one address, with one log. Each starts and replaces engines."""

    def __init__(
        self, number: int, folder: Path, command: Sequence[str], environ: Mapping[str, str], public: bytes
    ) -> None:
        """`command` runs the rest of its arguments as those of `octavo replica`. `public` is its key."""
        self.public = public
        self.name = f"m{number}"
        self._host, self._port = f"127.0.0.{FIRST_HOST + number}", 0
        self.is_disturbed = False  # by a fault: it may be gone
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short: sockets have short names
        self._log_path = folder / f"agent-{self.name}.log"
        self._command = [*command, "--replica-name", self.name]
        self._environ = {**os.environ, "TMPDIR": str(self.temporary), **environ}
        self.start()
        self._port = self._wait_for_port()

    def start(self) -> None:
        """Start the agent, or the next one at the same address."""
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, "--listen", self.address], stdout=log, stderr=log, env=self._environ
            )

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def host_and_port(self) -> tuple[str, int]:
        return self._host, self._port

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def temporary_inside(self) -> Path:
        """The temporary folder as the agent sees it, which may have mounted a disk there."""
        return Path(f"/proc/{self.process.pid}/root{self.temporary}")

    async def end(self, number: int) -> int:
        return await end(self.process, number)

    def stop(self) -> None:
        stop_at_once(self.process)
        try:
            self.process.wait(HANG_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _wait_for_port(self) -> int:
        ends_at = time.monotonic() + HANG_SECONDS
        while time.monotonic() < ends_at and self.process.poll() is None:
            if found := re.search(rf"replica {self.name} listens on \S+:(\d+)", self.log):
                return int(found[1])
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"the agent {self.name} does not listen:\n{self.log}")


def start_agents(
    number: int, folder: Path, arguments: Sequence[str], environ: Mapping[str, str], prefix: Sequence[str]
) -> tuple[list[AttackedAgent], KeyFiles]:
    """Start agents that compute with `arguments` (a checkpoint and engine options), and return the keys of
    their fleet. `prefix` is a command that runs the rest of its arguments, for each agent."""
    keys = KeyFiles(folder)
    octavo = [sys.executable, "-m", "octavo.cli.main", "replica"]
    command = [*prefix, *octavo, *arguments, "--fleet-key", str(keys.replica)]
    public = FleetKey.read(keys.replica).public
    agents: list[AttackedAgent] = []
    with contextlib.ExitStack() as stack:
        for index in range(number):
            agents.append(AttackedAgent(index, folder, command, environ, public))
            stack.callback(agents[-1].kill)
        stack.pop_all()
    return agents, keys
