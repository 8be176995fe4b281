"""An engine process that is kept alive, and the requests that outlive its deaths. One event loop owns it all.

submit ---> flight ---> socket ---> engine process
              |                          |
updates <-- text <------ outputs <-------+        when it dies: the next one is started, and every flight
                                                  asks it for what is left
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator
from enum import StrEnum

import zmq
import zmq.asyncio

from octavo.frontend.engine_process import EngineProcess
from octavo.frontend.flight import Flight
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import OutputProcessor, RequestOutput, StreamDelta
from octavo.link.folder import EngineSettings, new_run_folder
from octavo.link.status_page import Phase, Status
from octavo.link.wire import ToEngine, decode_from_engine, encode
from octavo.protocol import Abort, EngineFacts, EngineOutputs, EngineStats, Hello, Ready, TokenOutput
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.05
MOST_FRUITLESS_STARTS = 5  # engines that died before they served, one after the other
HEALTHY_SECONDS = 60.0  # after so long, a death is the first again
MOST_BUFFERED = 4096  # updates that nobody reads: the request is then ended

Update = StreamDelta | RequestOutput


class ServiceState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"  # no engine will come any more
    CLOSED = "closed"


class Updates:
    """What becomes of one request or several, for the one task that reads it. The last of each is a
    `RequestOutput`."""

    def __init__(self) -> None:
        self._waiting: deque[Update] = deque()
        self._arrived = asyncio.Event()

    def put(self, update: Update) -> None:
        self._waiting.append(update)
        self._arrived.set()

    def wake(self) -> None:
        """Let `take` return, with nothing if nothing has come."""
        self._arrived.set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    async def take(self) -> list[Update]:
        """All that has come, of whichever request; waits for something to come."""
        await self._arrived.wait()
        self._arrived.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    async def __aiter__(self) -> AsyncIterator[Update]:
        """Up to the end of one request."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                update = self._waiting.popleft()
                yield update
                if isinstance(update, RequestOutput):
                    return


class EngineService:
    def __init__(self, settings: EngineSettings, tokenizer: Tokenizer | None = None) -> None:
        """An engine takes long to start: it may do so before there is a tokenizer. See `use_tokenizer`."""
        self._settings = settings
        self._processor = None if tokenizer is None else OutputProcessor(tokenizer)
        self._flights: dict[str, Flight] = {}
        self._updates: dict[str, Updates] = {}
        self._folder = new_run_folder()
        self._context = zmq.asyncio.Context()
        self._engine: EngineProcess | None = None
        self._socket: zmq.asyncio.Socket | None = None  # to an engine that is ready
        self._supervisor: asyncio.Task[None] | None = None
        self._became_ready = asyncio.Event()
        self.state = ServiceState.STARTING
        self.failure: str | None = None  # with `FAILED`, what to tell people
        self.facts: EngineFacts | None = None
        self.stats: EngineStats | None = None
        self.num_restarts = 0

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name="octavo-supervisor")

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Once, before the first request."""
        assert self._processor is None
        self._processor = OutputProcessor(tokenizer)

    async def close(self) -> None:
        """End the engine. What is under way gets an error."""
        self.state = ServiceState.CLOSED
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        self._give_up("the server is shutting down")
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def wait_until_ready(self) -> None:
        """Returns when requests can be taken, or never will be: see `state`."""
        await self._became_ready.wait()

    @property
    def engine_pid(self) -> int | None:
        return None if self._engine is None else self._engine.pid

    @property
    def engine_status(self) -> Status | None:
        return None if self._engine is None else self._engine.status

    @property
    def is_live(self) -> bool:
        """A step can run, or an engine is being started."""
        if self.state in (ServiceState.FAILED, ServiceState.CLOSED):
            return False
        return self._engine is None or not self._engine.is_stale

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    # -- requests ------------------------------------------------------------------------------------

    async def submit(self, prepared: PreparedRequest, updates: Updates | None = None) -> Updates:
        """Also while the engine is restarting: the request then waits for the next one.

        Several requests may be read from the same `updates`; their names tell them apart.
        """
        assert self._processor is not None, "see `use_tokenizer`"
        updates, flight = updates or Updates(), Flight(prepared)
        flight.was_sent = self._socket is not None
        self._flights[prepared.request_id] = flight
        self._updates[prepared.request_id] = updates
        self._processor.open(prepared)
        for message in prepared.messages:
            await self._send(message)
        return updates

    async def abort(self, request_id: str) -> None:
        """Nobody waits for the request any more. Its pages are free one step later."""
        flight = self._flights.get(request_id)
        if flight is not None:
            flight.stop(None)
            await self._send(Abort(request_id))

    async def _send(self, message: ToEngine) -> None:
        if self._socket is not None:
            await self._socket.send(encode(message))

    # -- outputs -------------------------------------------------------------------------------------

    async def _take(self, message: EngineOutputs) -> None:
        self.stats = message.stats
        for output in message.outputs:
            flight = self._flights.get(output.request_id)
            if flight is not None:
                await self._deliver(flight.note(output))

    async def _deliver(self, output: TokenOutput) -> None:
        assert self._processor is not None
        processed = self._processor.process(output)
        updates = self._updates[output.request_id]
        if processed.abort is not None:
            self._flights[output.request_id].stop(processed.abort.choice)
            await self._send(processed.abort)
        if processed.delta is not None:
            updates.put(processed.delta)
        if processed.finished is not None:
            updates.put(processed.finished)
            del self._flights[output.request_id], self._updates[output.request_id]
        elif updates.num_waiting > MOST_BUFFERED:
            logger.warning("request %s is not being read: it is ended", output.request_id)
            await self.abort(output.request_id)

    # -- the supervisor --------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Start an engine, watch it, and start the next, until that makes no sense any more."""
        deaths = 0
        for number in range(1 << 31):
            started = time.monotonic()
            reason, refusal = await self._live_through_one(number)
            if refusal is not None:
                return self._fail(refusal)
            self._became_ready.clear()
            self.state = ServiceState.RESTARTING
            deaths = 1 if time.monotonic() - started > HEALTHY_SECONDS else deaths + 1
            if self.facts is None and deaths >= MOST_FRUITLESS_STARTS:
                return self._fail(f"the engine could not be started: {reason}")
            self.num_restarts += 1
            delay = 0.0 if deaths == 1 else min(0.1 * 2**deaths, 5.0)
            logger.warning("the engine died (%s); a new one is started in %.1f s", reason, delay)
            await asyncio.sleep(delay)

    async def _live_through_one(self, number: int) -> tuple[str, str | None]:
        """An engine from start to death: how it died, and whether its settings are at fault."""
        engine = EngineProcess(self._folder / f"engine-{number}", self._settings)
        self._engine = engine
        reader = asyncio.create_task(self._read(engine), name="octavo-engine-reader")
        try:
            while (death := engine.death()) is None:
                await asyncio.sleep(WATCH_SECONDS)
                if reader.done():
                    return f"its messages could not be read: {reader.exception()}", None
            return death, engine.refusal
        finally:
            self._socket = None
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader
            engine.stop()
            shutil.rmtree(engine.folder.path, ignore_errors=True)

    async def _read(self, engine: EngineProcess) -> None:
        while engine.status.phase is not Phase.SERVING:
            await asyncio.sleep(WATCH_SECONDS)
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        try:
            socket.connect(engine.folder.address)
            await socket.send(encode(Hello()))
            while True:
                message = decode_from_engine(await socket.recv())
                if isinstance(message, Ready):
                    await self._resume(message, socket)
                else:
                    await self._take(message)
        finally:
            socket.close()

    async def _resume(self, ready: Ready, socket: zmq.asyncio.Socket) -> None:
        """A new engine is there: ask it for what the last one did not finish."""
        is_first = self.facts is None
        self.facts, self.stats, self._socket = ready.facts, ready.stats, socket
        for flight in list(self._flights.values()):
            again, ended = flight.replay()
            for message in again:
                await self._send(message)
            for output in ended:
                await self._deliver(flight.note(output))
        self.state = ServiceState.READY
        self._became_ready.set()
        logger.info(
            "the engine is ready%s", "" if is_first else f" again; {len(self._flights)} requests go on"
        )

    def _fail(self, reason: str) -> None:
        self.state, self.failure = ServiceState.FAILED, reason
        logger.error("%s", reason)
        self._give_up(reason)
        self._became_ready.set()

    def _give_up(self, reason: str) -> None:
        for flight in list(self._flights.values()):
            for output in flight.give_up(reason):
                assert self._processor is not None
                processed = self._processor.process(flight.note(output))
                for update in (processed.delta, processed.finished):
                    if update is not None:
                        self._updates[output.request_id].put(update)
        self._flights.clear()
        self._updates.clear()
