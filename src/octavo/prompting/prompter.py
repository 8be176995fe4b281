"""The front end's side of the prompt process, which builds the prompts of all requests of a server."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys

from octavo.errors import PromptNotMade, RequestError
from octavo.fairness.tenant import Tenant
from octavo.fairness.turns import FairTurns
from octavo.prompting.jobs import (
    LENGTH,
    READY,
    SECONDS,
    Job,
    JobOutput,
    JobResult,
    PromptFailed,
    PromptRejected,
    Setup,
    decode_result,
    encode_job,
    encode_setup,
    framed,
)
from octavo.text.assets import TextAssets

logger = logging.getLogger(__name__)

MODULE = "octavo.prompting.process"
# Larger and slower jobs have a queue of their own, so that they delay only each other.
MAX_SHORT_BYTES = 64 << 10
SHORT_SECONDS = 0.5  # of CPU time
MAX_ATTEMPTS = 2  # to fork a worker, if the prompt process dies
LONG_SECONDS = 10.0  # of CPU time; slower jobs are rejected

TOO_COMPLEX = (
    "building the prompt with this model's chat template and tokenizer took too much time or memory: shorten"
    " the text of the request"
)

NOT_BUILT = "the server could not build the prompt; send the request again"


class TooComplex(Exception):
    """The worker was killed: the job exceeded its CPU time or memory."""


class PromptWorker:
    """A worker process. Owned by a queue."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid

    @classmethod
    async def fork(cls, control: socket.socket, seconds: float) -> "PromptWorker":
        """Start a worker with a limit of CPU time per job."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(control, [SECONDS.pack(seconds)], [theirs.fileno()])
            return cls(ours, int(await _receive(ours)))
        except BaseException:
            ours.close()
            raise

    async def run(self, job: bytes) -> bytes:
        await asyncio.get_running_loop().sock_sendall(self._connection, framed(job))
        return await _receive(self._connection)

    @property
    def is_alive(self) -> bool:
        """Whether an idle worker can run a job. A dead one has closed its end of the connection."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def kill(self) -> None:
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class PromptProcess:
    """A running prompt process. Owned by Prompter.

    A task of its own sends the setup, so that cancelling the request that started the process does not leave
    it with half of its setup.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, assets: TextAssets) -> None:
        self._process = process
        self._control = control
        self._setting_up = asyncio.create_task(_set_up(control, assets), name="octavo-prompter")

    @classmethod
    def start(cls, assets: TextAssets) -> "PromptProcess":
        """Start a process. Returns before it is ready."""
        control, theirs = socket.socketpair()
        control.setblocking(False)
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # keep Ctrl-C away from it
                )
        except BaseException:
            control.close()
            raise
        return cls(process, control, assets)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def fork(self, seconds: float) -> PromptWorker:
        """Return a new worker when the process is ready. Raises EOFError or OSError if it dies."""
        if not await asyncio.shield(self._setting_up):
            raise EOFError("the prompt process ended while it was starting")
        return await PromptWorker.fork(self._control, seconds)

    def end(self) -> None:
        """Kill the process. May be called more than once."""
        self._process.kill()
        self._process.wait()
        # The task ends by itself, because the process has closed its end of the socket. Until then our end
        # stays open: a new socket could get its file descriptor while the event loop still waits for it.
        self._setting_up.add_done_callback(lambda _: self._control.close())


async def _set_up(control: socket.socket, assets: TextAssets) -> bool:
    """Send the setup to a new process, and return whether it has become ready."""
    try:
        await asyncio.get_running_loop().sock_sendall(control, framed(encode_setup(Setup(assets))))
        return await _exactly(control, len(READY)) == READY
    except (OSError, EOFError):
        return False


class WorkerQueue:
    """Runs jobs one at a time, fair between tenants by the time that their jobs take.

    Cancelling a job that has started kills its worker.
    """

    def __init__(self, prompter: "Prompter", seconds: float) -> None:
        self._prompter = prompter
        self._seconds = seconds
        self._turns = FairTurns()
        self._worker: PromptWorker | None = None

    async def run(self, tenant: Tenant, job: bytes) -> bytes:
        async with self._turns.turn(tenant):
            worker, self._worker = self._worker, None
            if worker is not None and not worker.is_alive:
                worker.kill()
                worker = None
            worker = worker or await self._prompter.fork(self._seconds)
            try:
                result = await worker.run(job)
            except (OSError, EOFError) as error:
                worker.kill()
                raise TooComplex from error
            except BaseException:
                worker.kill()
                raise
            self._worker = worker
            return result

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()


class Prompter:
    """Owned by the event loop."""

    def __init__(self, assets: TextAssets) -> None:
        self._assets = assets
        self._process: PromptProcess | None = None
        self._short, self._long = WorkerQueue(self, SHORT_SECONDS), WorkerQueue(self, LONG_SECONDS)

    def start(self) -> PromptProcess:
        """Start the prompt process if it is not running. Returns before it is ready; the first job waits."""
        if self._process is None or not self._process.is_alive:
            self._end_process()
            self._process = PromptProcess.start(self._assets)
        return self._process

    async def run(self, tenant: Tenant, job: Job) -> JobOutput:
        """Return the result of a job. Raises what building the prompt in this process would raise."""
        result: JobResult = decode_result(await self._run(tenant, encode_job(job)))
        if isinstance(result, PromptRejected):
            raise result.error()
        if isinstance(result, PromptFailed):
            raise PromptNotMade(NOT_BUILT)
        return result

    async def _run(self, tenant: Tenant, job: bytes) -> bytes:
        if len(job) <= MAX_SHORT_BYTES:
            with contextlib.suppress(TooComplex):
                return await self._short.run(tenant, job)
        try:
            return await self._long.run(tenant, job)
        except TooComplex as error:
            logger.warning("rejected a prompt: building it took too much time or memory")
            raise RequestError(TOO_COMPLEX, "prompt") from error

    async def fork(self, seconds: float) -> PromptWorker:
        """Return a new worker. If the prompt process dies meanwhile, a new process forks it."""
        for _ in range(MAX_ATTEMPTS):
            process = None
            try:
                process = self.start()
                return await process.fork(seconds)
            except (OSError, EOFError) as error:
                logger.warning("cannot reach the prompt process, starting a new one: %r", error)
                if process is not None:
                    process.end()
        raise PromptNotMade(NOT_BUILT)

    def close(self) -> None:
        for queue in (self._short, self._long):
            queue.close()
        self._end_process()

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


async def _receive(connection: socket.socket) -> bytes:
    (size,) = LENGTH.unpack(await _exactly(connection, LENGTH.size))
    return await _exactly(connection, size)


async def _exactly(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    pieces = bytearray(size)
    view = memoryview(pieces)
    while view:
        num_bytes = await loop.sock_recv_into(connection, view)
        if not num_bytes:
            raise EOFError
        view = view[num_bytes:]
    return bytes(pieces)
