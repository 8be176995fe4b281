"""The server under attack, and all of its processes, including those that outlive their parent."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
        environ: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        keys = folder / "keys.txt"
        keys.write_text(tenants.key_file)
        keys.chmod(0o600)
        self._mark = uuid.uuid4().hex
        always = {
            "--api-key-file": str(keys),
            "--dtype": "bfloat16",
            "--max-model-len": "1024",
            "--max-running": "8",
            "--max-step-tokens": "64",  # so that prefill takes several steps
            "--max-queued-requests": str(QUEUED_PER_WEIGHT * tenants.total_weight),
            "--max-held": "16MiB",
            "--stalled-timeout": "10",
            "--served-model-name": "m",
        }
        super().__init__(
            folder,
            model,
            *(word for flag in always.items() for word in flag),
            *flags,
            environ={MARK: self._mark, **(environ or {})},
            records=False,
            prefix=prefix,
        )

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

    def children(self, module: str) -> list[int]:
        """Return the processes that run a module and that the front end started itself."""
        return [
            process.pid
            for process in self.processes
            if f"-m {module} " in process.command and process.parent == self.process.pid
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
        for _ in range(2):  # a second signal stops at once
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                time.sleep(0.05)
        try:
            self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)


def small_disk(folder: Path) -> tuple[str, ...]:
    """Return a command prefix that mounts a small disk on $TMPDIR; empty if that is not possible here."""
    with contextlib.suppress(FileNotFoundError):
        environ = os.environ | {"TMPDIR": str(folder)}
        done = subprocess.run([*ON_A_SMALL_DISK, "true"], env=environ, check=False, capture_output=True)
        if done.returncode == 0:
            return ON_A_SMALL_DISK
    return ()
