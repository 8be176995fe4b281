"""The addresses of a fleet on a Ray cluster: `--fleet ray:NAME`.

A child process is connected to Ray and writes the list again and again (`octavo.ray.follow`). If the head of
the cluster is lost, that process ends, the last list remains valid, and a new process is started.
"""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process

from octavo.membership.address_source import AddressesUnavailable

FOLLOW = (sys.executable, "-m", "octavo.ray.follow")
FIRST_LIST_SECONDS = 30.0  # that the process may take to connect
RESTART_SECONDS = 5.0  # before a process that has ended is started again
MAX_LINE = 1 << 20
MAX_ERROR = 2000  # characters of its last message


class RayAddresses:
    """Owned by the event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._following: asyncio.Task[None] | None = None
        self._latest: tuple[str, ...] | None = None  # None: no list yet
        self._problem = "the cluster does not answer"
        self._has_looked = asyncio.Event()

    async def addresses(self) -> tuple[str, ...]:
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="octavo-ray-addresses")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_looked.wait(), FIRST_LIST_SECONDS)
        if not self._latest:
            problem = self._problem if self._latest is None else "it has no replicas yet"
            raise AddressesUnavailable(f"fleet: ray:{self.name}: {problem}")
        return self._latest

    async def _follow(self) -> None:
        while True:
            try:
                await self._run_process()
            except Exception as error:  # too many files, too little memory: the next process may start
                self._problem = f"cannot ask the cluster ({error})"
            self._has_looked.set()
            await asyncio.sleep(RESTART_SECONDS)

    async def _run_process(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(*FOLLOW, self.name),
            stdin=PIPE,  # when this process ends, so does the input, and then the other process
            stdout=PIPE,
            stderr=PIPE,
            limit=MAX_LINE,
            start_new_session=True,  # Ctrl-C is for the front end
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(process))
                group.create_task(self._read_problem(process))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None, "a pipe"
        async for line in process.stdout:
            self._latest = tuple(sorted({one for one in line.decode().strip().split(",") if one}))
            self._has_looked.set()

    async def _read_problem(self, process: Process) -> None:
        assert process.stderr is not None, "a pipe"
        async for line in process.stderr:
            if line.strip():
                self._problem = line.decode(errors="replace").strip()[:MAX_ERROR]
