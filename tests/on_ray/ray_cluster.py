"""A real Ray cluster with several nodes on this machine, and the programs that use it."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from chaos.machines import RUN_MARK, FrontEndProgram, marked_processes
from data.json_types import Json
from patience import HANG_SECONDS

TOKEN = "c" * 64  # of Ray's authentication
TESTS = Path(__file__).parents[1]
Found = TypeVar("Found")


def ray_environ(folder: Path, *, mode: str = "token") -> dict[str, str]:
    """Return the environment of all processes of a cluster. `folder` must have a short path."""
    # Coverage would multiply the time that a worker of Ray takes to start, and there are dozens of them.
    inherited = os.environ.items()
    environ = {name: value for name, value in inherited if not name.startswith(("RAY_", "COVERAGE_"))}
    return environ | {
        "RAY_AUTH_MODE": mode,
        "RAY_AUTH_TOKEN": TOKEN,
        # A node without a head ends after this time. The default is 60 s.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        # Of a busy machine, Ray would expect too much: its processes end if others take 30 s to start.
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_gcs_rpc_server_connect_timeout_s": "300",
        "RAY_gcs_server_request_timeout_seconds": "300",
        "RAY_gcs_server_port_wait_time_s": "300",
        "RAY_health_check_timeout_ms": "30000",
        # By default, workers start several at a time, in reserve, and with the lowest priority. Beside other
        # tests they then take minutes, Ray starts still more of them, and everything on the machine stalls.
        "RAY_worker_niceness": "0",
        "RAY_worker_maximum_startup_concurrency": "1",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(folder),
        "PYTHONPATH": str(TESTS),
        RUN_MARK: str(os.getpid()),
    }


class RayCluster:
    """A head without CPUs, and nodes that may be killed."""

    def __init__(self, folder: Path, *, mode: str = "token") -> None:
        self.folder = folder
        self.environ = ray_environ(folder, mode=mode)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "on_ray.cluster_process"],
            env=self.environ,
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "cluster.log").open("ab"),
            start_new_session=True,
            text=True,
        )
        self.environ["RAY_ADDRESS"] = self.address = self._answer()

    def add_node(self, cpus: int) -> str:
        return self.tell(f"add {cpus}")

    def status(self, fleet: str) -> Json:
        return json.loads(self.tell(f"status {fleet}"))

    def tell(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        assert answer, (self.folder / "cluster.log").read_text(errors="replace")[-4000:]
        return answer

    def octavo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `octavo` on a node."""
        command = [sys.executable, "-m", "octavo.cli.main", *arguments]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=2 * HANG_SECONDS, check=False
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(HANG_SECONDS)


class RayFrontEnd(FrontEndProgram):
    """`octavo serve --fleet ray:NAME`."""

    def __init__(self, cluster: RayCluster, model: Path, fleet: str) -> None:
        self._cluster_environ = cluster.environ
        keys = cluster.folder / "keys/front-end.key"
        arguments = [str(model), "--fleet", f"ray:{fleet}", "--fleet-key", str(keys), "--log-format", "json"]
        super().__init__("front-end", cluster.folder, arguments)

    def start(self) -> "subprocess.Popen[bytes]":
        self._environ = self._cluster_environ
        return super().start()


@contextlib.contextmanager
def ray_folder() -> Iterator[Path]:
    """Yield a folder for a test with Ray, and kill all processes of the test at its end."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        finally:
            while pids := [pid for pid in marked_processes() if pid != os.getpid()]:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def replica_pids(name: str | None = None) -> dict[str, int]:
    """Return the process ids of this test's agents, by the names of their replicas."""
    found = {}
    for pid in marked_processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "replica" in words and "--replica-name" in words:
                found[words[words.index("--replica-name") + 1]] = pid
    return {key: pid for key, pid in found.items() if name in (None, key)}


def actor_pids() -> list[int]:
    """Return the process ids of this test's actors that supervise replicas."""
    found = []
    for pid in marked_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::ReplicaActor"):
                found.append(pid)
    return found


async def until(condition: Callable[[], Found]) -> Found:
    """Wait until a function returns something true, and return that."""
    async with asyncio.timeout(2 * HANG_SECONDS):
        while not (found := await asyncio.to_thread(condition)):
            await asyncio.sleep(0.2)
        return found
