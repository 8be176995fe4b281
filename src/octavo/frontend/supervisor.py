"""The supervisor of one replica: it starts an engine process, watches it, and replaces it after its end.

The requests outlive engines, and belong to the user of the engines, such as the hub. The supervisor connects
the user to an engine that is ready, and disconnects it when that engine dies. While an engine does not
respond, the user suspects it.

    no heartbeat for 2.5 s (or the engine's own timeout)    suspected: its requests move to other replicas
    ... for 6 s more than its own timeout                   hung: killed and replaced
    it sent messages for 2.5 s, but none arrived            the link is cut: connected again
"""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import zmq

from octavo.config import counted
from octavo.errors import OctavoError
from octavo.frontend.engine_process import ENGINE_MODULE, Death, EngineProcess, FirstEngine
from octavo.frontend.engine_user import EngineUser
from octavo.frontend.loss import NOBODYS_FAULT, Loss
from octavo.frontend.replica_link import ReplicaLink
from octavo.frontend.socket_channel import EngineRecipient, SocketChannel
from octavo.link.folder import FIRST_REPLICA, EngineSettings
from octavo.link.heartbeat import Heartbeat, Phase
from octavo.link.run_folder import RunFolder
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import EngineFacts, EngineOutputs, EngineStats
from octavo.view import EngineView, Watch

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.02
# When to give up on engines that die before they are ready: after this many in a row if no engine was ever
# ready, otherwise after this many seconds.
MAX_FAILED_STARTS = 5
MAX_FAILED_SECONDS = 300.0
MAX_DELAY = 5.0  # seconds between a death and the next start
# Seconds from the last message that arrived to the last one that the engine sent, after which the link is
# cut. An engine sends a message every 0.05 s while it computes, if steps are short, and every 0.5 s if idle.
CUT_AFTER = 2.5
MIN_CUT_POLLS = 25  # in a row: this process may have been too busy to read the messages

# What clients see: nothing about this machine. The log has the details.
FAILED = "the engine failed; see the server's log for the reason"


class EngineState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    UNREACHABLE = "unreachable"  # there is no connection to the machine with the engine
    FAILED = "failed"  # no engine will be started again
    CLOSED = "closed"


@dataclass
class EngineRun:
    """What one engine achieved, from which the supervisor decides how to continue."""

    was_started: bool = True
    was_ready: bool = False
    was_useful: bool = False  # it generated a token of a request
    is_blameless: bool = False  # no request can be the cause of its loss
    was_replaced: bool = False
    death: Death | None = None
    cannot_start: bool = False


class FingerprintError(OctavoError):
    """An engine would give other answers than the engines before it."""


class EngineSupervisor:
    """Owned by the event loop that owns the user of the engines."""

    def __init__(
        self,
        settings: EngineSettings,
        user: EngineUser,
        *,
        name: str = FIRST_REPLICA,
        module: str = ENGINE_MODULE,
        first: FirstEngine | None = None,
    ) -> None:
        """`name` is that of the replica, and `module` is what its engine process runs. The supervisor takes
        ownership of `first`."""
        self.name = name
        self._settings = msgspec.structs.replace(settings, replica=name)
        self._user = user
        self._front_end = secrets.token_hex(8)  # identifies this process to its engines
        self._fingerprint: str | None = None  # of all engines
        self._connected_at: float | None = None  # when it last tried to connect; None: not yet
        self._num_cut_polls = 0
        self._is_replacing = False
        self._is_suspected = False  # as the user knows it
        self._module = module
        self._first = None if first is None else first.process
        self._folder: RunFolder | None = None if first is None else first.run_folder
        self._engine: EngineProcess | None = None
        self._context = zmq.Context()
        self._channel: SocketChannel | None = None  # to an engine that is ready
        self._task: asyncio.Task[None] | None = None
        self._became_ready = asyncio.Event()
        self._has_failed = asyncio.Event()
        self.state = EngineState.STARTING
        self.failure: str | None = None  # why it gave up, for the operator of the server
        self.problem: str | None = None  # why there is no engine now, safe to show to clients
        self.last_death: str | None = None  # why its latest engine died, for the operator of the server
        self.ready_at: float | None = None  # when the current engine was ready; None: it is not
        self.facts: EngineFacts | None = None  # of the engine that was ready last
        self.tally = EngineTally()
        self.num_restarts = 0
        self.num_failures = 0  # engines that were ready, and died or hung
        self.link: ReplicaLink | None = None  # to be read only; stays when the replica was dismissed
        self.on_view: Callable[[EngineView], None] | None = None  # see `watch`

    def start(self) -> None:
        self.link = self._user.expect(self.name)
        self._task = asyncio.create_task(self._supervise(), name="octavo-supervisor")

    async def close(self) -> None:
        """Stop the engine. If it was the last one, in-flight requests end with an error. May be called more
        than once."""
        self.state = EngineState.CLOSED
        self._user.dismiss(self.name, "the server is shutting down")
        self._became_ready.set()
        self._has_failed.set()
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
        """Return when an engine is ready, or when none ever will be: see `state`."""
        await self._became_ready.wait()

    async def wait_until_failed(self) -> None:
        """Return when the supervisor has given up starting engines, or is closed."""
        await self._has_failed.wait()

    @property
    def engine_pid(self) -> int | None:
        return None if self._engine is None else self._engine.pid

    @property
    def engine_heartbeat(self) -> Heartbeat | None:
        return None if self._engine is None else self._engine.heartbeat

    @property
    def is_live(self) -> bool:
        """Whether an engine is running without an overdue heartbeat, or is about to be started."""
        if self.state in (EngineState.FAILED, EngineState.CLOSED):
            return False
        return self._engine is None or not self._engine.is_overdue

    @property
    def is_started(self) -> bool:
        return self._task is not None

    @property
    def is_usable(self) -> bool:
        """Whether its engine is ready and responds, and the link to it works."""
        return self.link is not None and self.link.is_usable

    @property
    def engine_address(self) -> str | None:
        """Where the engine listens; None if there is no engine."""
        return None if self._engine is None else self._engine.folder.address

    @property
    def refused_connections(self) -> Mapping[str, int]:
        return {}  # its engine listens in a folder of this user only

    @property
    def stats(self) -> EngineStats | None:
        return self.tally.stats

    async def replace(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Move all requests away with `drain`, and start a new engine. Returns when the old one has ended."""
        engine = self._engine
        if engine is None or self.state is not EngineState.READY:
            return  # the next one is about to be ready
        await drain()
        self._is_replacing = self._engine is engine  # it may have died meanwhile
        try:
            while self._engine is engine:
                await asyncio.sleep(WATCH_SECONDS)
        finally:
            self._is_replacing = False  # cancelled: the engine goes on if it has not ended yet

    def watch(self, seconds: float, interval: float) -> None:
        """Ask the current engine, if any, to send views to `on_view` for `seconds`, one per `interval`."""
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
        """Start and watch one engine after another, until giving up. Return the reason."""
        failed_starts = unproductive_runs = 0
        ready_at = time.monotonic()
        while True:
            run, death = await self._run_engine()
            failed_starts = 0 if run.was_ready else failed_starts + 1
            unproductive_runs = 0 if run.was_useful or run.was_replaced else unproductive_runs + 1
            ready_at = time.monotonic() if run.was_ready else ready_at
            if run.cannot_start and self.facts is None:
                return death.reason
            is_new = self.facts is None and failed_starts >= MAX_FAILED_STARTS
            if is_new or time.monotonic() - ready_at > MAX_FAILED_SECONDS:
                return f"the engine could not be started: {death.reason}"
            self.state = EngineState.RESTARTING
            self.last_death = None if run.was_replaced else death.reason
            self._became_ready.clear()
            self.num_restarts += 1
            self.num_failures += run.was_ready and not run.was_replaced
            delay = 0.0 if not unproductive_runs else min(0.1 * 2**unproductive_runs, MAX_DELAY)
            if run.was_replaced:
                logger.info("%s: the engine was drained and has ended, starting the next one", self.name)
            else:
                event = "the engine died" if run.was_started else "the engine cannot be started"
                logger.warning(
                    "%s: %s (%s), starting the next one in %.1f s", self.name, event, death.reason, delay
                )
            await self._wait(delay)

    async def _wait(self, seconds: float) -> None:
        """Wait, and end requests whose deadline passes meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._user.end_expired()
            await asyncio.sleep(min(left, WATCH_SECONDS))

    async def _run_engine(self) -> tuple[EngineRun, Death]:
        """Run one engine from its start to its death."""
        run = EngineRun()
        try:
            engine = self._first or self._start_engine()
        except OSError as error:  # no disk space, file descriptor or process left: perhaps temporary
            self.problem = f"the engine cannot be started: {os.strerror(error.errno or errno.EIO)}"
            run.was_started = False
            return run, Death(str(error))
        self._first, self._engine = None, engine
        self.tally.start_began(time.monotonic())
        reader = asyncio.create_task(self._read(engine, run), name="octavo-engine-reader")
        try:
            while run.death is None:
                await asyncio.sleep(WATCH_SECONDS)
                run.death = self._death(engine, run)
                self.tally.note_phase(engine.heartbeat.phase, time.monotonic())
                if reader.done() and run.death is None:
                    run.death = Death(f"its messages could not be read: {reader.exception()}")
                    run.cannot_start = isinstance(reader.exception(), FingerprintError)
                elif self._is_cut(engine):
                    reader = await self._reconnect(engine, run, reader)
                self._note_response(engine)
                self._user.end_expired()
            run.cannot_start = run.cannot_start or engine.cannot_start
            return run, run.death
        finally:
            engine.kill()
            await _cancelled(reader)
            while not engine.has_exited:  # the next one needs its memory
                await asyncio.sleep(WATCH_SECONDS)
            self._engine = None  # its heartbeat must not count for the next engine
            self._is_replacing = False  # this one has ended, and the next one must not
            if self._folder is not None:
                self._folder.remove_engine(self.num_restarts)

    async def _reconnect(
        self, engine: EngineProcess, run: EngineRun, reader: asyncio.Task[None]
    ) -> asyncio.Task[None]:
        run.is_blameless = True
        if self._channel is None:  # it did not answer the last attempt either
            run.death = Death("it does not answer, although it is running")
            return reader
        logger.warning("%s: the link is cut, connecting again", self.name)
        await _cancelled(reader)
        run.is_blameless = False
        return asyncio.create_task(self._read(engine, run), name="octavo-engine-reader")

    def _death(self, engine: EngineProcess, run: EngineRun) -> Death | None:
        if self._is_replacing:
            self._is_replacing, run.is_blameless, run.was_replaced = False, True, True
            return Death("it was replaced")
        return engine.death()

    def _is_cut(self, engine: EngineProcess) -> bool:
        """Whether messages of the engine do not arrive, or it does not answer a new connection."""
        heard_at = self._connected_at if self._channel is None else self._channel.heard_at
        is_cut = heard_at is not None and engine.heartbeat.sent_at - heard_at > CUT_AFTER
        is_cut |= self._channel is not None and self._channel.has_lost_message
        self._num_cut_polls = self._num_cut_polls + 1 if is_cut else 0
        return self._num_cut_polls > MIN_CUT_POLLS

    def _note_response(self, engine: EngineProcess) -> None:
        """Tell the user whether the engine responds."""
        is_suspected = self._channel is not None and engine.is_suspected
        if is_suspected and not self._is_suspected:
            logger.warning("%s: the engine does not respond", self.name)
            self._user.suspect(self.name, self._in_slots(engine))
        elif self._is_suspected and not is_suspected and self._channel is not None:
            logger.info("%s: the engine responds again", self.name)
            self._user.restore(self.name)
        self._is_suspected = is_suspected

    def _in_slots(self, engine: EngineProcess) -> frozenset[int] | None:
        # Engines with version 1 know requests by other ids.
        is_known = self._channel is not None and self._channel.version >= 2
        return engine.in_slots if is_known else None

    def _start_engine(self) -> EngineProcess:
        self._folder = self._folder or RunFolder.create()
        settings = msgspec.structs.replace(self._settings, expects_grammars=self._user.has_grammars)
        return EngineProcess(self._folder.engine_path(self.num_restarts), settings, self._module)

    async def _read(self, engine: EngineProcess, run: EngineRun) -> None:
        """Connect to an engine when it is ready, and read its messages until it is dead."""
        self._connected_at = None
        while engine.heartbeat.phase is not Phase.SERVING:
            await asyncio.sleep(WATCH_SECONDS)
        self._connected_at = time.monotonic()
        channel = await SocketChannel.open(self._context, engine.folder.address, self._front_end)

        def receive(message: EngineOutputs) -> None:
            # Not by the outputs: those for the front ends of an agent do not pass through here.
            run.was_useful |= message.stats.tokens_sampled > channel.stats.tokens_sampled
            self.tally.note(message.stats)
            self._user.receive(self.name, message)

        try:
            self._check_fingerprint(channel.facts)
            run.was_ready = True
            self._connect(channel)
            await channel.read(
                EngineRecipient(
                    receive, self._show, lambda prefixes: self._user.receive_prefixes(self.name, prefixes)
                )
            )
        finally:
            death = run.death or Death("")
            loss = Loss(self._in_slots(engine), death.is_hang, death.request_id)
            self._channel = self.ready_at = None
            try:
                self._user.disconnect(self.name, NOBODYS_FAULT if run.is_blameless else loss)
            finally:
                self.tally.engine_lost()
                channel.close()

    def _check_fingerprint(self, facts: EngineFacts) -> None:
        """Refuse an engine that would continue answers with other tokens, e.g. of a changed checkpoint."""
        if self._fingerprint not in (None, facts.system_fingerprint):
            raise FingerprintError(
                f"its fingerprint is {facts.system_fingerprint}, not {self._fingerprint}: the checkpoint or"
                " the software has changed; restart the server to use it"
            )

    def _connect(self, channel: SocketChannel) -> None:
        if self.state is EngineState.CLOSED:  # the replica was dismissed, and would be expected again
            return
        self.pin(channel.facts)
        self.facts, self._channel, self.problem = channel.facts, channel, None
        self.ready_at = time.monotonic()
        self.tally.note_phase(Phase.SERVING, time.monotonic())
        self.tally.engine_ready(channel.stats)
        again = f" again, {counted(len(self._user), 'request')} in flight" if self.num_restarts else ""
        logger.info("%s: the engine is ready%s (%s)", self.name, again, self.tally.phase_summary())
        self._user.connect(self.name, channel, channel.facts, channel.ask_prefixes)
        self.state = EngineState.READY
        self._became_ready.set()

    def pin(self, facts: EngineFacts) -> None:
        """Fix the sizes and the fingerprint of later engines to those of the first one: however much memory
        is free, they must fit the same requests and give the same answers."""
        if self._fingerprint is not None:
            return
        self._fingerprint = facts.system_fingerprint
        sizes = {"max_model_len": facts.max_model_len, "kv_memory": facts.kv_bytes}
        self._settings = msgspec.structs.replace(self._settings, options={**self._settings.options, **sizes})

    def share(self, num_engines: int) -> None:
        """Divide the cores by this number when the next engine is started."""
        self._settings = msgspec.structs.replace(self._settings, num_engines=num_engines)

    def _show(self, view: EngineView) -> None:
        """Pass a view on. An error in `on_view` must not end the engine."""
        if self.on_view is None:
            return
        try:
            self.on_view(view)
        except Exception:
            logger.exception("failed to show a view of the engine")

    def _fail(self, reason: str) -> None:
        self.state, self.failure = EngineState.FAILED, reason
        self.last_death = reason
        logger.error("%s: %s", self.name, reason)
        self._user.dismiss(self.name, FAILED)
        self._became_ready.set()
        self._has_failed.set()


async def _cancelled(reader: asyncio.Task[None]) -> None:
    """Cancel the task that reads from an engine, and wait for its end."""
    reader.cancel()
    # `close` may cancel the caller here; `await reader` would cancel the reader too.
    await asyncio.wait([reader])
    if not reader.cancelled():
        reader.exception()  # already reported, as the engine's death
