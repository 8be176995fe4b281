"""An engine process that is kept alive: started, watched, and replaced when it dies.

Requests are the hub's. It is told when an engine can be asked and when that engine is gone, and the requests
outlive the engines.
"""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import zmq.asyncio

from octavo.frontend.engine_process import ENGINE_MODULE, Death, EngineProcess, FirstEngine
from octavo.frontend.hub import Hub
from octavo.frontend.socket_channel import SocketChannel
from octavo.link.folder import EngineSettings
from octavo.link.run_folder import RunFolder
from octavo.link.status_page import Phase, Status
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import EngineFacts, EngineOutputs, EngineStats
from octavo.view import EngineView, Watch

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.02
# Engines that died before they were ready, one after the other: so many if there never was one that was, else
# for so many seconds.
MOST_FRUITLESS_STARTS = 5
MOST_FRUITLESS_SECONDS = 300.0
LONGEST_DELAY = 5.0  # seconds between a death and the next start

# What clients are told: never anything of this machine. The log says more.
FAILED = "the engine has failed; the server's log has the reason"


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"  # no engine will come any more
    CLOSED = "closed"


@dataclass
class EngineLife:
    """What one engine has been good for, so that the supervisor knows how to go on."""

    was_started: bool = True
    was_ready: bool = False
    was_useful: bool = False  # it gave an output
    death: Death | None = None
    cannot_start: bool = False


class EngineSupervisor:
    """Owned by the event loop that owns the hub."""

    def __init__(
        self,
        settings: EngineSettings,
        hub: Hub,
        *,
        module: str = ENGINE_MODULE,
        first: FirstEngine | None = None,
    ) -> None:
        """`module` is what the engine process runs. `first` is ours from now on."""
        self._settings = settings
        self._hub = hub
        self._module = module
        self._first = None if first is None else first.process
        self._folder: RunFolder | None = None if first is None else first.run_folder
        self._engine: EngineProcess | None = None
        self._context = zmq.asyncio.Context()
        self._channel: SocketChannel | None = None  # to an engine that is ready
        self._task: asyncio.Task[None] | None = None
        self._became_ready = asyncio.Event()
        self._has_failed = asyncio.Event()
        self.state = EngineState.STARTING
        self.failure: str | None = None  # with `FAILED`, what to tell whoever runs the server
        self.problem: str | None = None  # why there is no engine now, in words that anybody may read
        self.facts: EngineFacts | None = None  # of the last engine that was ready
        self.tally = EngineTally()
        self.num_restarts = 0
        self.on_view: Callable[[EngineView], None] | None = None  # see `watch`

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise(), name="octavo-supervisor")

    async def close(self) -> None:
        """End the engine. What is in flight gets an error. Twice does no harm."""
        self.state = EngineState.CLOSED
        self._give_up("the server is shutting down")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for engine in (self._first, self._engine):
            if engine is not None:
                engine.stop()
        self._context.destroy(linger=0)
        if self._folder is not None:
            self._folder.remove()

    async def wait_until_ready(self) -> None:
        """Returns when requests can be taken, or never will be: see `state`."""
        await self._became_ready.wait()

    async def wait_until_failed(self) -> None:
        """Returns when no engine will come any more."""
        await self._has_failed.wait()

    @property
    def engine_pid(self) -> int | None:
        return None if self._engine is None else self._engine.pid

    @property
    def engine_status(self) -> Status | None:
        return None if self._engine is None else self._engine.status

    @property
    def is_live(self) -> bool:
        """A step can run, or an engine is being started."""
        if self.state in (EngineState.FAILED, EngineState.CLOSED):
            return False
        return self._engine is None or not self._engine.is_stale

    @property
    def stats(self) -> EngineStats | None:
        return self.tally.stats

    def watch(self, seconds: float, interval: float) -> None:
        """Let the engine of now, if there is one, show itself to `on_view` for so long."""
        if self._channel is not None:
            self._channel.send(Watch(seconds, interval))

    # -- one engine after the other --------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            self._fail(await self._keep_alive())
        except Exception as error:
            logger.exception("the supervisor failed")
            self._fail(f"the engine could not be started: {error}")

    async def _keep_alive(self) -> str:
        """Start an engine, watch it, and start the next, until that makes no sense any more: why."""
        fruitless_starts = useless_lives = 0
        ready_at = time.monotonic()
        while True:
            life, death = await self._live_once()
            fruitless_starts = 0 if life.was_ready else fruitless_starts + 1
            useless_lives = 0 if life.was_useful else useless_lives + 1
            ready_at = time.monotonic() if life.was_ready else ready_at
            if life.cannot_start and self.facts is None:
                return death.reason
            is_new = self.facts is None and fruitless_starts >= MOST_FRUITLESS_STARTS
            if is_new or time.monotonic() - ready_at > MOST_FRUITLESS_SECONDS:
                return f"the engine could not be started: {death.reason}"
            self.state = EngineState.RESTARTING
            self._became_ready.clear()
            self.num_restarts += 1
            delay = 0.0 if not useless_lives else min(0.1 * 2**useless_lives, LONGEST_DELAY)
            what = "the engine died" if life.was_started else "no engine can be started"
            logger.warning("%s (%s); the next is started in %.1f s", what, death.reason, delay)
            await self._rest(delay)

    async def _rest(self, seconds: float) -> None:
        """Deadlines go on."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._hub.end_overdue()
            await asyncio.sleep(min(left, WATCH_SECONDS))

    async def _live_once(self) -> tuple[EngineLife, Death]:
        """An engine from start to death."""
        life = EngineLife()
        try:
            engine = self._first or self._start_engine()
        except OSError as error:  # no room on the disk, no descriptor, no process: it may pass
            self.problem = f"the engine cannot be started: {os.strerror(error.errno or errno.EIO)}"
            life.was_started = False
            return life, Death(str(error))
        self._first, self._engine = None, engine
        self.tally.begin(time.monotonic())
        reader = asyncio.create_task(self._read(engine, life), name="octavo-engine-reader")
        try:
            while life.death is None:
                await asyncio.sleep(WATCH_SECONDS)
                life.death = engine.death()
                self.tally.watch(engine.status.phase, time.monotonic())
                if reader.done() and life.death is None:
                    life.death = Death(f"its messages could not be read: {reader.exception()}")
                if self._channel is None:
                    self._hub.end_overdue()
            life.cannot_start = engine.cannot_start
            return life, life.death
        finally:
            engine.kill()
            reader.cancel()
            # `close` may cancel us at this point. `await reader` would pass that on to the reader.
            await asyncio.wait([reader])
            if not reader.cancelled():
                reader.exception()  # told above, as the engine's death
            while not engine.is_gone:  # the next one needs its memory
                await asyncio.sleep(WATCH_SECONDS)
            self._engine = None  # its stamp says nothing of whether another can be started
            if self._folder is not None:
                self._folder.remove_engine(self.num_restarts)

    def _start_engine(self) -> EngineProcess:
        self._folder = self._folder or RunFolder.create()
        settings = msgspec.structs.replace(self._settings, expects_grammars=self._hub.has_grammars)
        return EngineProcess(self._folder.engine_path(self.num_restarts), settings, self._module)

    async def _read(self, engine: EngineProcess, life: EngineLife) -> None:
        """From the moment an engine is ready until it is not heard any more."""
        while engine.status.phase is not Phase.SERVING:
            await asyncio.sleep(WATCH_SECONDS)
        channel = await SocketChannel.open(self._context, engine.folder.address)

        def receive(message: EngineOutputs) -> None:
            life.was_useful = life.was_useful or bool(message.outputs)
            self.tally.note(message.stats)
            self._hub.receive(message)

        try:
            life.was_ready = True
            self._connect(channel)
            await channel.read(receive, self._show)
        finally:
            self._channel = None
            self._hub.disconnect()
            if life.death is not None and life.death.is_hang:
                self._hub.blame_hang(life.death.request_id)
            self.tally.lose()
            channel.close()

    def _connect(self, channel: SocketChannel) -> None:
        if self.facts is None:
            self._pin(channel.facts)
        self.facts, self._channel, self.problem = channel.facts, channel, None
        self.tally.watch(Phase.SERVING, time.monotonic())
        self.tally.meet(channel.stats)
        again = f" again; {len(self._hub)} requests go on" if self.num_restarts else ""
        logger.info("the engine is ready%s (%s)", again, self.tally.phases_in_words())
        self._hub.connect(channel)
        if self.state is not EngineState.CLOSED:
            self.state = EngineState.READY
        self._became_ready.set()

    def _pin(self, facts: EngineFacts) -> None:
        """However much memory is free then, the next engine must take every request that this one took."""
        sizes = {"max_model_len": facts.max_model_len, "kv_memory": facts.kv_bytes}
        self._settings = msgspec.structs.replace(self._settings, options={**self._settings.options, **sizes})

    def _show(self, view: EngineView) -> None:
        """What people look at must never cost them the engine."""
        if self.on_view is None:
            return
        try:
            self.on_view(view)
        except Exception:
            logger.exception("a view cannot be shown")

    def _fail(self, reason: str) -> None:
        self.state, self.failure = EngineState.FAILED, reason
        logger.error("%s", reason)
        self._give_up(FAILED)
        self._has_failed.set()

    def _give_up(self, reason: str) -> None:
        self._hub.give_up(reason)
        self._became_ready.set()
