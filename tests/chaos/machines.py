"""Machines of a test: network namespaces, links that can be disturbed, and the programs that run there."""

import asyncio
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from chaos.ending import end
from data.json_types import Json
from engine_children import engine_children
from load.wire import ask
from patience import HANG_SECONDS

MACHINES = FRONT_ENDS = (0, 1)
RUN_MARK = "CHAOS_RUN"  # an environment variable of all processes of a run
EXPECTED_ERRORS = re.compile(r"the engine of \S+ hung while computing .*, isolating")  # it was stopped


def run_command(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, timeout=HANG_SECONDS)


class Network:
    """The namespaces, and a link from each front end to each machine. The names and addresses are those of
    this process, so that several can run at once."""

    def namespace(self, machine: int) -> str:
        return f"octavo-{os.getpid()}-m{machine}"

    def address(self, front_end: int, machine: int, *, is_machine: bool = True) -> str:
        """Return the address of one end of a link, in 198.18.0.0/15, which is for tests."""
        number = (os.getpid() % (1 << 13) << 4) + 4 * (2 * front_end + machine) + 1 + is_machine
        return f"198.{18 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            for machine in MACHINES:
                run_command(f"ip netns add {self.namespace(machine)}")
                for front_end in FRONT_ENDS:
                    self._add_link(front_end, machine)
            yield
        finally:
            for machine in MACHINES:  # its links end with it
                with contextlib.suppress(subprocess.CalledProcessError):
                    run_command(f"ip netns delete {self.namespace(machine)}")

    def _add_link(self, front_end: int, machine: int) -> None:
        namespace, here, there = (
            self.namespace(machine),
            f"oc{os.getpid()}f{front_end}m{machine}",
            f"f{front_end}",
        )
        run_command(f"ip link add {here} type veth peer name {there} netns {namespace}")
        address = self.address(front_end, machine, is_machine=False)
        run_command(f"ip address add {address}/30 dev {here}")
        run_command(f"ip -n {namespace} address add {self.address(front_end, machine)}/30 dev {there}")
        run_command(f"ip link set {here} up")
        run_command(f"ip -n {namespace} link set {there} up")


class DelayProxy:
    """Passes the bytes of connections on after `delay` seconds, which may change at any time."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.delay = 0.0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            async with asyncio.timeout(10):
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:  # when one side closes the connection, both end
                group.create_task(self._pass_on(reader, far_writer))
                group.create_task(self._pass_on(far_reader, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            for one in writers:
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        while data := await reader.read(1 << 16):
            due = max(due + 1e-6, loop.time() + self.delay)  # it increases: bytes stay in order
            loop.call_at(due, writer.write, data)
        raise ConnectionError("it was closed")


class Program:
    """A command of `octavo`: one process after the other, with one log."""

    def __init__(self, name: str, folder: Path, prefix: str, arguments: list[str]) -> None:
        self.name = name
        self._log_path = folder / f"{name}.log"
        self._command = [*prefix.split(), sys.executable, "-m", "octavo.cli.main", *arguments]
        self._environ = os.environ | {"TMPDIR": str(folder), RUN_MARK: str(os.getpid())}
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        with self._log_path.open("ab") as log:
            # In a session of its own: Ctrl-C must reach only this program, which then ends the others.
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environ, start_new_session=True
            )
        return self.process

    async def end(self, number: int) -> int:
        return await end(self.process, number)

    @property
    def engine_pid(self) -> int | None:
        """None between two engines."""
        return next(engine_children(self.process.pid), None)

    def problems(self) -> Iterator[str]:
        """Yield the unexpected errors in its log."""
        for line in self._log_path.read_text(errors="replace").splitlines():
            try:
                logged = json.loads(line)
            except ValueError:  # not from the log: a traceback, or a message of another library
                yield f"{self.name}: {line}"
                continue
            is_error = logged["level"] in ("error", "critical") or "traceback" in logged
            if is_error and not EXPECTED_ERRORS.search(logged["message"]):
                yield f"{self.name}: {line}"


class FrontEndProgram(Program):
    def __init__(self, name: str, folder: Path, arguments: list[str]) -> None:
        self.port = unused_port()
        super().__init__(name, folder, "", ["serve", *arguments, "--port", str(self.port)])
        self.num_deaths = 0
        self.is_up = False

    async def status(self) -> Json:
        """Return GET /octavo/fleet."""
        return (await ask(self.port, "/octavo/fleet")).json

    async def ready(self) -> set[str]:
        """Return the names of the replicas that it can use."""
        return {one["name"] for one in (await self.status())["replicas"] if one["state"] == "ready"}

    async def until_up(self) -> None:
        """Wait until it accepts requests, as a load balancer does."""
        async with asyncio.timeout(HANG_SECONDS):
            while not self.is_up:
                assert self.process.poll() is None, self._log_path.read_text(errors="replace")[-1500:]
                with contextlib.suppress(OSError):
                    self.is_up = (await ask(self.port, "/readyz")).status == 200
                await asyncio.sleep(0.1)


def unused_port() -> int:
    """Return a port below those that the system chooses, so that nobody takes it meanwhile."""
    while True:
        port = random.randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def marked_processes() -> Iterator[int]:
    """Yield the processes of this run."""
    mark = f"{RUN_MARK}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
