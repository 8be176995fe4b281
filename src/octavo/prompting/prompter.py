"""The front end's side of the process that makes prompts: one way for every request of a server."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys

from octavo.errors import PromptNotMade, RequestError
from octavo.prompting.jobs import (
    LENGTH,
    SECONDS,
    Done,
    Failed,
    Job,
    Made,
    Refused,
    Setup,
    decode_done,
    encode_job,
    encode_setup,
    framed,
)
from octavo.text.assets import TextAssets

logger = logging.getLogger(__name__)

MODULE = "octavo.prompting.process"
# Jobs that are larger, or take longer, wait for each other and for nobody else.
LONG_BYTES = 64 << 10
SHORT_SECONDS = 0.5  # of processor time
LONG_SECONDS = 10.0  # what takes longer is refused

TOO_COMPLEX = (
    "The text of this request took too long, or too much memory, to make a prompt of with this model's chat"
    " template and tokenizer. Shorten it."
)

NOT_MADE = "the prompt could not be made; send the request again"


class TooComplex(Exception):
    """The child that did a job has ended: its time or its memory was used up."""


class Child:
    """Owned by a lane."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._pid = pid

    @classmethod
    async def fork(cls, control: socket.socket, seconds: float) -> "Child":
        """`seconds` of processor time for each job."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(control, [SECONDS.pack(seconds)], [theirs.fileno()])
            return cls(ours, int(await _receive(ours)))
        except BaseException:
            ours.close()
            raise

    async def ask(self, job: bytes) -> bytes:
        await asyncio.get_running_loop().sock_sendall(self._connection, framed(job))
        return await _receive(self._connection)

    def end(self) -> None:
        """At once, whatever it does."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


class Lane:
    """Jobs one after the other, in the order they came. Who does not wait any more costs nobody anything: a
    job that has begun ends with its child."""

    def __init__(self, prompter: "Prompter", seconds: float) -> None:
        self._prompter = prompter
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._child: Child | None = None

    async def run(self, job: bytes) -> bytes:
        async with self._turn:
            child, self._child = self._child, None
            child = child or await self._prompter.fork(self._seconds)
            try:
                answer = await child.ask(job)
            except (OSError, EOFError) as error:
                child.end()
                raise TooComplex from error
            except BaseException:
                child.end()
                raise
            self._child = child
            return answer

    def close(self) -> None:
        if self._child is not None:
            self._child.end()


class Prompter:
    """Owned by the event loop."""

    def __init__(self, assets: TextAssets) -> None:
        self._assets = assets
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._short, self._long = Lane(self, SHORT_SECONDS), Lane(self, LONG_SECONDS)

    async def start(self) -> None:
        """The process, if there is none. Returns before it is ready: the first job waits for that."""
        async with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            self._end_process()
            control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(os.getpid()), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # Ctrl-C is for us
                )
            control.setblocking(False)
            self._control = control
            await asyncio.get_running_loop().sock_sendall(control, framed(encode_setup(Setup(self._assets))))

    async def run(self, job: Job) -> Made:
        """Raises what making the prompt would have raised here."""
        done: Done = decode_done(await self._run(encode_job(job)))
        if isinstance(done, Refused):
            raise done.error()
        if isinstance(done, Failed):
            raise PromptNotMade(NOT_MADE)
        return done

    async def _run(self, job: bytes) -> bytes:
        if len(job) <= LONG_BYTES:
            with contextlib.suppress(TooComplex):
                return await self._short.run(job)
        try:
            return await self._long.run(job)
        except TooComplex as error:
            logger.warning("a prompt was given up: it took too long to make, or too much memory")
            raise RequestError(TOO_COMPLEX, "prompt") from error

    async def fork(self, seconds: float) -> Child:
        try:
            await self.start()
            assert self._control is not None
            return await Child.fork(self._control, seconds)
        except (OSError, EOFError) as error:
            self._end_process()
            logger.warning("the process that makes prompts cannot be reached: %s", error)
            raise PromptNotMade(NOT_MADE) from error

    def close(self) -> None:
        for lane in (self._short, self._long):
            lane.close()
        self._end_process()

    def _end_process(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
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
