"""An engine process that is kept alive, and the requests that outlive its deaths. One event loop owns it all.

submit ---> flight ---> socket ---> engine process
              |                          |
updates <-- text <------ outputs <-------+        when it dies: the next one is started, and every flight
                                                  asks it for what is left

Nothing between two awaits can be interrupted, and there are few: to take a message, and to watch. So a
request is sent, replayed or ended as a whole.
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from octavo.frontend.engine_process import ENGINE_MODULE, EngineProcess
from octavo.frontend.flight import Flight
from octavo.frontend.flights import Flights
from octavo.frontend.intake import PreparedRequest
from octavo.frontend.output import OutputProcessor
from octavo.frontend.updates import Update, Updates
from octavo.link.folder import EngineSettings, engine_path, new_run_folder
from octavo.link.status_page import Phase, Status
from octavo.link.wire import ToEngine, decode_from_engine, encode
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import (
    Abort,
    EngineFacts,
    EngineOutputs,
    EngineStats,
    Failure,
    FailureCode,
    FinishReason,
    Hello,
    Ready,
    TokenOutput,
)
from octavo.text.tokenizer import Tokenizer
from octavo.view import EngineView, Watch

__all__ = ["EngineService", "ServiceState", "Update", "Updates"]

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.02
MOST_FRUITLESS_STARTS = 5  # engines that died before they were ready, one after the other
LONGEST_DELAY = 5.0  # seconds between a death and the next start
MOST_BUFFERED = 4096  # updates that nobody reads: the request is then ended


class ServiceState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"  # no engine will come any more
    CLOSED = "closed"


@dataclass
class EngineLife:
    """What one engine has been good for, so that the supervisor knows how to go on."""

    engine: EngineProcess
    was_ready: bool = False
    was_useful: bool = False  # it gave an output
    death: str = ""
    cannot_start: bool = False


class EngineService:
    def __init__(
        self, settings: EngineSettings, tokenizer: Tokenizer | None = None, *, module: str = ENGINE_MODULE
    ) -> None:
        """An engine takes long to start: it may do so before there is a tokenizer. See `use_tokenizer`.

        `module` is what the engine process runs.
        """
        self._settings = settings
        self._module = module
        self._processor = None if tokenizer is None else OutputProcessor(tokenizer)
        self._flights = Flights()
        self._updates: dict[str, Updates] = {}
        self._folder: Path | None = None
        self._context = zmq.asyncio.Context()
        self._life: EngineLife | None = None
        self._socket: zmq.asyncio.Socket | None = None  # to an engine that is ready
        self._supervisor: asyncio.Task[None] | None = None
        self._became_ready = asyncio.Event()
        self.state = ServiceState.STARTING
        self.failure: str | None = None  # with `FAILED`, what to tell people
        self.facts: EngineFacts | None = None
        self.tally = EngineTally()
        self.num_restarts = 0
        self.on_view: Callable[[EngineView], None] | None = None  # see `watch`

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._folder = new_run_folder()
        self._supervisor = asyncio.create_task(self._supervise(self._folder), name="octavo-supervisor")

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
        if self._life is not None:
            self._life.engine.stop()
        self._give_up("the server is shutting down")
        self._context.destroy(linger=0)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def wait_until_ready(self) -> None:
        """Returns when requests can be taken, or never will be: see `state`."""
        await self._became_ready.wait()

    @property
    def engine_pid(self) -> int | None:
        return None if self._life is None else self._life.engine.pid

    @property
    def engine_status(self) -> Status | None:
        return None if self._life is None else self._life.engine.status

    @property
    def is_live(self) -> bool:
        """A step can run, or an engine is being started."""
        if self.state in (ServiceState.FAILED, ServiceState.CLOSED):
            return False
        return self._life is None or not self._life.engine.is_stale

    @property
    def stats(self) -> EngineStats | None:
        return self.tally.stats

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    def num_replays(self, request_id: str) -> int:
        """How many engines have died under a request that is under way."""
        flight = self._flights.get(request_id)
        return 0 if flight is None else flight.num_replays

    @property
    def _text(self) -> OutputProcessor:
        assert self._processor is not None, "see `use_tokenizer`"
        return self._processor

    # -- requests ------------------------------------------------------------------------------------

    async def submit(self, prepared: PreparedRequest, updates: Updates | None = None) -> Updates:
        """Also while the engine is restarting: the request then waits for the next one.

        Several requests may be read from the same `updates`; their names tell them apart.
        """
        updates, flight = updates or Updates(), Flight(prepared)
        self._updates[prepared.request_id] = updates
        self._text.open(prepared)
        self._flights.add(flight)
        if self.state in (ServiceState.FAILED, ServiceState.CLOSED):
            reason = self.failure or "the server is shutting down"
            self._end(flight, FinishReason.ERROR, Failure(FailureCode.ENGINE_FAILED, reason))
        self._ask_for_due()
        return updates

    async def abort(self, request_id: str) -> None:
        """Nobody waits for the request any more. Its pages are free one step later."""
        flight = self._flights.get(request_id)
        if flight is not None:
            self._abort(flight)

    def _abort(self, flight: Flight) -> None:
        flight.stop(None)
        if flight.is_asked:
            self._send(Abort(flight.request_id))
        else:
            self._end(flight, FinishReason.ABORT)

    def _ask_for_due(self) -> None:
        for flight in self._flights.due():
            messages, ended = flight.ask()
            for message in messages:
                self._send(message)
            for output in ended:
                self._deliver(flight, output)

    def _send(self, message: ToEngine) -> None:
        # Without a limit on its queue, ZeroMQ takes a message at once: there is nothing to wait for.
        if self._socket is not None:
            self._socket.send(encode(message))

    def watch(self, seconds: float, interval: float) -> None:
        """Let the engine of now, if there is one, show itself to `on_view` for so long."""
        self._send(Watch(seconds, interval))

    def _show(self, view: EngineView) -> None:
        """What people look at must never cost them the engine."""
        if self.on_view is None:
            return
        try:
            self.on_view(view)
        except Exception:
            logger.exception("a view cannot be shown")

    # -- outputs -------------------------------------------------------------------------------------

    def _take(self, message: EngineOutputs) -> None:
        self.tally.note(message.stats)
        for output in message.outputs:
            flight = self._flights.get(output.request_id)
            if flight is not None:
                self._deliver(flight, output)
        self._ask_for_due()

    def _deliver(self, flight: Flight, output: TokenOutput) -> None:
        updates = self._updates[flight.request_id]
        try:
            processed = self._text.process(flight.note(output))
        except Exception as error:  # whatever it is, it is this request's alone
            logger.exception("the text of request %s cannot be made", flight.request_id)
            self._send(Abort(flight.request_id))
            self._forget(flight)
            updates.put(error)
            return
        if processed.abort is not None:
            flight.stop(processed.abort.choice)
            self._send(processed.abort)
        if processed.delta is not None:
            updates.put(processed.delta)
        if processed.finished is not None:
            self._forget(flight)
            updates.put(processed.finished)
        elif updates.num_waiting > MOST_BUFFERED and not flight.is_stopped:
            logger.warning("request %s is not being read: it is ended", flight.request_id)
            self._abort(flight)

    def _end(self, flight: Flight, reason: FinishReason, failure: Failure | None = None) -> None:
        for output in flight.end(reason, failure):
            self._deliver(flight, output)

    def _forget(self, flight: Flight) -> None:
        self._flights.remove(flight)
        self._text.forget(flight.request_id)
        del self._updates[flight.request_id]

    def _give_up(self, reason: str) -> None:
        for flight in self._flights:
            self._end(flight, FinishReason.ERROR, Failure(FailureCode.ENGINE_FAILED, reason))
        self._became_ready.set()

    def _end_the_late(self) -> None:
        """With no engine to do it: deadlines go on."""
        now = time.monotonic()
        for flight in self._flights:
            if not flight.is_asked and flight.deadline is not None and flight.deadline <= now:
                self._end(flight, FinishReason.DEADLINE)

    # -- the supervisor --------------------------------------------------------------------------------

    async def _supervise(self, folder: Path) -> None:
        try:
            self._fail(await self._keep_alive(folder))
        except Exception as error:
            logger.exception("the supervisor failed")
            self._fail(f"the engine could not be started: {error}")

    async def _keep_alive(self, folder: Path) -> str:
        """Start an engine, watch it, and start the next, until that makes no sense any more: why."""
        fruitless_starts = useless_lives = 0
        while True:
            life = await self._live_once(engine_path(folder, self.num_restarts))
            fruitless_starts = 0 if life.was_ready else fruitless_starts + 1
            useless_lives = 0 if life.was_useful else useless_lives + 1
            if life.cannot_start and self.facts is None:
                return life.death
            if fruitless_starts >= MOST_FRUITLESS_STARTS:
                return f"the engine could not be started: {life.death}"
            self.state = ServiceState.RESTARTING
            self._became_ready.clear()
            self.num_restarts += 1
            delay = 0.0 if not useless_lives else min(0.1 * 2**useless_lives, LONGEST_DELAY)
            logger.warning("the engine died (%s); a new one is started in %.1f s", life.death, delay)
            await asyncio.sleep(delay)

    async def _live_once(self, path: Path) -> EngineLife:
        """An engine from start to death."""
        life = EngineLife(EngineProcess(path, self._settings, self._module))
        self._life = life
        self.tally.begin(time.monotonic())
        reader = asyncio.create_task(self._read(life), name="octavo-engine-reader")
        try:
            while not life.death:
                await asyncio.sleep(WATCH_SECONDS)
                life.death = life.engine.death() or ""
                self.tally.watch(life.engine.status.phase, time.monotonic())
                if reader.done():
                    life.death = life.death or f"its messages could not be read: {reader.exception()}"
                if self._socket is None:
                    self._end_the_late()
            life.cannot_start = life.engine.cannot_start
            return life
        finally:
            self._socket = None
            self._flights.lose_engine()
            self.tally.lose()
            life.engine.kill()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader
            while not life.engine.is_gone:  # the next one needs its memory
                await asyncio.sleep(WATCH_SECONDS)
            shutil.rmtree(path, ignore_errors=True)

    async def _read(self, life: EngineLife) -> None:
        while life.engine.status.phase is not Phase.SERVING:
            await asyncio.sleep(WATCH_SECONDS)
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        try:
            socket.connect(life.engine.folder.address)
            socket.send(encode(Hello()))
            while True:
                message = decode_from_engine(await socket.recv())
                if isinstance(message, Ready):
                    life.was_ready = True
                    self._resume(message, socket)
                elif isinstance(message, EngineView):
                    self._show(message)
                else:
                    life.was_useful = life.was_useful or bool(message.outputs)
                    self._take(message)
                    await asyncio.sleep(0)  # those who wait for this step's text go before the next step's
        finally:
            socket.close()

    def _resume(self, ready: Ready, socket: zmq.asyncio.Socket) -> None:
        """A new engine is there: ask it for what the last one did not finish."""
        if self.facts is None:
            self._pin(ready.facts)
        self.facts, self._socket = ready.facts, socket
        self.tally.watch(Phase.SERVING, time.monotonic())
        self.tally.meet(ready.stats)
        again = f" again; {len(self._flights)} requests go on" if self.num_restarts else ""
        logger.info("the engine is ready%s (%s)", again, self.tally.phases_in_words())
        self._flights.meet_engine()
        self._ask_for_due()
        self.state = ServiceState.READY
        self._became_ready.set()

    def _pin(self, facts: EngineFacts) -> None:
        """However much memory is free then, the next engine must take every request that this one took."""
        sizes = {"max_model_len": facts.max_model_len, "kv_memory": facts.kv_bytes}
        self._settings = msgspec.structs.replace(self._settings, options={**self._settings.options, **sizes})

    def _fail(self, reason: str) -> None:
        self.state, self.failure = ServiceState.FAILED, reason
        logger.error("%s", reason)
        self._give_up(reason)
