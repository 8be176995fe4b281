"""The server under attack, and all of its processes, including those that outlive their parent."""

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attacker.agents import AttackedAgent, start_agents, stop_at_once
from attacker.tenants import Tenants
from attacks.test_faults import ON_A_SMALL_DISK
from patience import HANG_SECONDS
from server.process import Server

MARK = "ATTACKED_SERVER"  # environment variable that all processes of one server inherit
ENGINE, PROMPTER, CHECKER = (
    "octavo.engine.process",
    "octavo.prompting.process",
    "octavo.grammar.check_process",
)
QUEUED_PER_WEIGHT = 16  # half of the queue is guaranteed to tenants by weight
ENGINE_FLAGS = {
    "--dtype": "bfloat16",
    "--max-model-len": "1024",
    "--max-running": "8",
    "--max-step-tokens": "64",  # so that prefill takes several steps
}


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str


class AttackedServer(Server):
    """A server with little KV memory and few slots, so that requests are queued and preempted."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        tenants: Tenants,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        keys = folder / "keys.txt"
        keys.write_text(tenants.key_file)
        keys.chmod(0o600)
        marked = {MARK: uuid.uuid4().hex, **(environ or {})}
        self._mark = marked[MARK]
        always = ENGINE_FLAGS | {
            "--api-key-file": str(keys),
            "--max-queued-requests": str(QUEUED_PER_WEIGHT * tenants.total_weight),
            "--max-held": "16MiB",
            "--stalled-timeout": "10",
            "--served-model-name": "m",
        }
        super().__init__(
            folder,
            model,
            *_words(always),
            *flags,
            environ=marked,
            records=False,
            prefix=prefix,
        )

    @property
    def agents(self) -> Sequence[AttackedAgent]:
        """The replicas on other machines; empty if the server has an engine of its own."""
        return ()

    @property
    def whole_log(self) -> str:
        """The logs of all of its processes."""
        return self.log

    @property
    def problem(self) -> str | None:
        """Why the server cannot go on, if it cannot."""
        return None if self.process.poll() is None else f"the server exited: {self.log[-1500:]}"

    @property
    def lasting_pids(self) -> list[int]:
        """The processes that must not hold more and more."""
        return [self.process.pid]

    @property
    def processes(self) -> list[Process]:
        """All processes of this server except the front end."""
        found = []
        mark = f"{MARK}={self._mark}".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal() or int(folder.name) == self.process.pid:
                continue
            with contextlib.suppress(OSError):
                if mark not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if stat[0] != "Z":
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(Process(int(folder.name), int(stat[1]), command))
        return found

    def children(self, module: str, parent: int | None = None) -> list[int]:
        """Return the processes that run a module and that the front end, or `parent`, started itself."""
        parent = self.process.pid if parent is None else parent
        return [
            process.pid
            for process in self.processes
            if f"-m {module} " in process.command and process.parent == parent
        ]

    def workers(self, module: str) -> list[int]:
        """Return the processes that a process of this module forked."""
        parents = self.children(module)
        return [process.pid for process in self.processes if process.parent in parents]

    @property
    def temporary_inside(self) -> Path:
        """The temporary folder as the server sees it, which may have mounted a disk there."""
        return Path(f"/proc/{self.process.pid}/root{self.temporary}")

    def stop(self) -> None:
        """Stop the server without the check of its event loop, which measures seconds."""
        self._yardstick.stop()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        stop_at_once(self.process)
        try:
            self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)


class AttackedFleet(AttackedServer):
    """A front end without an engine, and agents with one engine each. `flags` are those of the engines."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        tenants: Tenants,
        *flags: str,
        num_agents: int,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        marked = {MARK: uuid.uuid4().hex, **(environ or {})}
        # Together they have about as many slots as one server, so that requests wait for one.
        max_running = max(2, round(int(ENGINE_FLAGS["--max-running"]) / num_agents))
        engine_flags = ENGINE_FLAGS | {"--max-running": str(max_running), "--threads": "1"}
        arguments = [str(model), *_words(engine_flags), *flags]
        self._agents, keys = start_agents(num_agents, folder, arguments, marked, prefix)
        listed = ",".join(agent.address for agent in self._agents)
        fleet_flags = ("--fleet", listed, "--fleet-key", str(keys.front_end))
        try:
            super().__init__(folder, model, tenants, *fleet_flags, environ=marked)
        except BaseException:
            for agent in self._agents:
                agent.kill()
            raise

    @property
    def agents(self) -> Sequence[AttackedAgent]:
        return self._agents

    @property
    def whole_log(self) -> str:
        return "\n".join([self.log, *(f"{agent.name}:\n{agent.log}" for agent in self._agents)])

    @property
    def problem(self) -> str | None:
        for agent in self._agents:
            if not agent.is_disturbed and agent.process.poll() is not None:
                return f"the agent {agent.name} exited: {agent.log[-1500:]}"
        return super().problem

    @property
    def lasting_pids(self) -> list[int]:
        return [self.process.pid, *(agent.process.pid for agent in self._agents)]

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            for agent in self._agents:
                agent.stop()


def _words(flags: Mapping[str, str]) -> list[str]:
    return [word for flag in flags.items() for word in flag]


def small_disk(folder: Path) -> tuple[str, ...]:
    """Return a command prefix that mounts a small disk on $TMPDIR; empty if that is not possible here."""
    with contextlib.suppress(FileNotFoundError):
        environ = os.environ | {"TMPDIR": str(folder)}
        done = subprocess.run([*ON_A_SMALL_DISK, "true"], env=environ, check=False, capture_output=True)
        if done.returncode == 0:
            return ON_A_SMALL_DISK
    return ()
