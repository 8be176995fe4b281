"""Replicas on this machine: each is a child process, with a supervisor of its own."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import msgspec

from octavo.config import MAX_REPLICAS
from octavo.errors import FleetError
from octavo.frontend.drain_replica import LONELY_SECONDS, POLL_SECONDS, drain_replica
from octavo.frontend.engine_process import ENGINE_MODULE, FirstEngine
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineState, EngineSupervisor
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import Heartbeat
from octavo.membership.replica import best_state, find_replica, replica_status, shown_replica
from octavo.membership.room import check_room
from octavo.observe.audit_counts import AuditCounts
from octavo.observe.engine_tally import EngineTally, EngineTotals
from octavo.protocol import EngineFacts
from octavo.status import ReplicaStatus
from octavo.view import EngineView

logger = logging.getLogger(__name__)


class LocalReplicas:
    """Owned by the event loop that owns the hub.

    The first replica starts alone: it packs the weights for all, and its facts (the size of the KV cache, the
    fingerprint) are those of all others. The server is ready when it is ready.
    """

    def __init__(
        self,
        settings: EngineSettings,
        hub: Hub,
        *,
        num_replicas: int = 1,
        module: str = ENGINE_MODULE,
        first: FirstEngine | None = None,
    ) -> None:
        """`module` is what the engine processes run. Takes ownership of `first`, the engine of `r0`."""
        self.hub = hub
        self._module = module
        self._numbers = itertools.count()  # a name is never used again
        self._first = self._new(settings, first)
        self._settings = msgspec.structs.replace(settings, profile=None)  # one engine writes the trace
        self.supervisors = [self._first, *(self._new(self._settings) for _ in range(1, num_replicas))]
        self._closing: list[EngineSupervisor] = []  # removed, and their engines have not ended yet
        self._removed = EngineTally()  # of all that were removed
        self._num_removed_restarts = 0
        self._task: asyncio.Task[None] | None = None
        self._has_failed = asyncio.Event()

    def start(self) -> None:
        self._first.start()
        self._task = asyncio.create_task(self._oversee(), name="octavo-replicas")

    async def close(self) -> None:
        """Stop all engines. In-flight requests end with an error. May be called more than once."""
        self.hub.give_up("the server is shutting down")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*(supervisor.close() for supervisor in (*self.supervisors, *self._closing)))

    async def wait_until_ready(self) -> None:
        """Return when the first replica is ready, or never will be: see `state`."""
        await self._first.wait_until_ready()

    async def wait_until_failed(self) -> None:
        """Return when no engine of any replica will be started again."""
        await self._has_failed.wait()

    # -- commands of the operator, one at a time: see `FleetOperations` --------------------------------------

    def check_restart(self, name: str) -> None:
        """Raise FleetError if the replica cannot be restarted."""
        if self.find(name).state is EngineState.FAILED:
            raise FleetError(
                f"{name} has failed and cannot be restarted: remove it, then add another replica"
            )

    async def restart(self, name: str) -> None:
        """Drain a replica and start a new engine there. Returns when it is ready.

        Raises FleetError if it does not become ready; the supervisor continues to try.
        """
        self.check_restart(name)
        supervisor = self.find(name)
        max_restarts = supervisor.num_restarts + 1
        with self._draining(name):
            await supervisor.replace(partial(self._drain, supervisor, LONELY_SECONDS))
        while supervisor.state is not EngineState.READY:
            if supervisor.state is EngineState.FAILED or supervisor.num_restarts > max_restarts:
                raise FleetError(
                    f"the new engine of {name} did not become ready: {supervisor.last_death}. Read the"
                    " log of the server and fix the cause; the server continues to start engines there"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def replace_all(self, on_restarted: Callable[[str], None] = lambda name: None) -> None:
        """Restart every replica, one after the other, while the others compute all requests.

        Raises FleetError at the first one that does not become ready; the following ones are left alone.
        """
        for supervisor in self.supervisors:
            self.check_restart(supervisor.name)
        for supervisor in list(self.supervisors):
            for other in self.supervisors:  # its requests need a place
                await other.wait_until_ready()
            await self.restart(supervisor.name)
            on_restarted(supervisor.name)

    def check_remove(self, name: str, others: Collection[str] = ()) -> None:
        """Raise FleetError if the replica, with `others` that will be removed too, would leave none."""
        self.find(name)
        staying = [one for one in self.supervisors if one.name not in (name, *others)]
        if not any(one.is_started and one.state is not EngineState.FAILED for one in staying):
            raise FleetError(
                f"{name} cannot be removed: no other replica would be left to compute requests. Add one"
                " first, or stop the server"
            )

    async def remove(self, name: str) -> None:
        """Drain a replica and end its engine, while another replica is usable. Its name is never used again.

        Without another usable replica it waits for one, and its engine computes all requests meanwhile.
        """
        supervisor, is_drained = self.find(name), False
        while not is_drained:
            self.check_remove(name)  # the others may have failed meanwhile
            with self._draining(name):
                is_drained = await self._try_drain(supervisor)
        logger.info("%s: removed", name)
        await self._discard(supervisor)

    def check_add(self, num_queued: int = 0) -> None:
        """Raise FleetError if no replica can be added after `num_queued` others."""
        if self.facts is None:
            raise FleetError("the first engine is not ready yet: wait for it, then add a replica")
        if len(self.supervisors) + num_queued >= MAX_REPLICAS:
            raise FleetError(
                f"a server has at most {MAX_REPLICAS} replicas: remove one first, or start another server"
            )
        live = [one for one in self.supervisors if one.state is not EngineState.FAILED]
        engines = [
            (one.engine_pid, one.stats)
            for one in live
            if one.ready_at is not None and one.engine_pid is not None and one.stats is not None
        ]
        check_room(self.facts, engines, len(live) - len(engines) + num_queued)

    async def add(self, on_named: Callable[[str], None] = lambda name: None) -> str:
        """Start one more replica, and return its name when it is ready. Raises FleetError if it never is."""
        self.check_add()
        assert self.facts is not None, "checked"
        supervisor = self._new(self._settings)
        on_named(supervisor.name)
        self.supervisors.append(supervisor)
        self._share_cores()
        supervisor.pin(self.facts)
        supervisor.start()
        await supervisor.wait_until_ready()
        if supervisor.failure is not None:
            await self._discard(supervisor)
            raise FleetError(f"{supervisor.name} was not added: {supervisor.failure}")
        return supervisor.name

    def named(self, name: str) -> EngineSupervisor | None:
        return next((one for one in self.supervisors if one.name == name), None)

    def find(self, name: str) -> EngineSupervisor:
        """Return the replica of this name. Raises UnknownReplica."""
        return find_replica(self.supervisors, name)

    @property
    def num_moves(self) -> int:
        return self.hub.num_moves

    @property
    def audit_counts(self) -> AuditCounts:
        return self.hub.audit_counts

    @property
    def keepers(self) -> None:
        return None

    def report_queue(self, queue_seconds: Callable[[], float]) -> None:
        pass  # only an operator adds replicas here

    @property
    def hubs(self) -> Sequence[Hub]:
        return (self.hub,)  # all engines have the same fingerprint

    @property
    def replicas(self) -> Sequence[EngineSupervisor]:
        return self.supervisors

    # -- the engine view -------------------------------------------------------------------------------------

    @property
    def shown(self) -> EngineSupervisor | None:
        return shown_replica(self.supervisors)

    def watch(
        self, name: str, seconds: float, interval: float, on_view: Callable[[EngineView], None] | None
    ) -> None:
        """Ask the engine of a replica to send views to `on_view` for `seconds`, one per `interval`. Does
        nothing if the replica has been removed."""
        watched = self.named(name)
        if watched is not None:
            watched.on_view = on_view
            watched.watch(seconds, interval)

    # -- of all replicas -----------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """The best state of any replica."""
        return best_state([supervisor.state for supervisor in self.supervisors])

    @property
    def failure(self) -> str | None:
        """Why no replica will have an engine again, for the operator of the server. Stays after `close`."""
        reasons = [supervisor.failure for supervisor in self.supervisors if supervisor.is_started]
        return reasons[0] if reasons and None not in reasons else None

    @property
    def problem(self) -> str | None:
        """Why there is no engine now, safe to show to clients."""
        if self.state is EngineState.READY:
            return None
        return next((one.problem for one in self.supervisors if one.problem is not None), None)

    @property
    def facts(self) -> EngineFacts | None:
        """The facts that all engines have in common; None until one was ready."""
        return next((one.facts for one in self.supervisors if one.facts is not None), None)

    @property
    def is_live(self) -> bool:
        return any(supervisor.is_live for supervisor in self.supervisors)

    @property
    def engine_heartbeat(self) -> Heartbeat | None:
        return self.supervisors[0].engine_heartbeat

    @property
    def num_restarts(self) -> int:
        """Engines that were ready, and then died or hung. Not those that the operator has replaced."""
        replicas = (*self.supervisors, *self._closing)
        return self._num_removed_restarts + sum(one.num_failures for one in replicas)

    @property
    def totals(self) -> EngineTotals:
        replicas = (*self.supervisors, *self._closing)
        return EngineTally.total([*(supervisor.tally for supervisor in replicas), self._removed])

    @property
    def num_unplaced_requests(self) -> int:
        """In-flight requests that no replica has."""
        links = [one.link for one in self.supervisors if one.link is not None]
        return len(self.hub) - sum(len(link.requests) for link in links)

    def status(self) -> tuple[ReplicaStatus, ...]:
        """Return what the operator of the server sees of each replica."""
        return tuple(map(replica_status, self.supervisors))

    # -- parts -----------------------------------------------------------------------------------------------

    async def _oversee(self) -> None:
        await self._first.wait_until_ready()
        if self._first.facts is None:
            await self._first.wait_until_failed()
        else:
            for supervisor in self.supervisors[1:]:
                supervisor.pin(self._first.facts)
                supervisor.start()
            ended = (EngineState.FAILED, EngineState.CLOSED)
            while running := [one for one in self.supervisors if one.state not in ended]:
                await running[0].wait_until_failed()
        self._has_failed.set()

    def _new(self, settings: EngineSettings, first: FirstEngine | None = None) -> EngineSupervisor:
        name = f"r{next(self._numbers)}"
        return EngineSupervisor(settings, self.hub, name=name, module=self._module, first=first)

    def _share_cores(self) -> None:
        """Divide the cores anew, for engines that are started from now on."""
        for supervisor in self.supervisors:
            supervisor.share(len(self.supervisors))

    async def _try_drain(self, supervisor: EngineSupervisor) -> bool:
        """Return whether the replica can be removed now: it has no requests, and others can be sent more."""
        name = supervisor.name
        if self.hub.link(name) is None:  # it has failed, and its requests have moved
            return True
        if self._has_usable_beside(name):
            await self._drain(supervisor, lonely_seconds=0.0)
            link = self.hub.link(name)
            if link is None or (self._has_usable_beside(name) and not link.requests):
                return True
            self.hub.end_drain(name)
        await asyncio.sleep(POLL_SECONDS)
        return False

    async def _drain(self, supervisor: EngineSupervisor, lonely_seconds: float) -> None:
        pid = supervisor.engine_pid
        await drain_replica(self.hub, supervisor.name, lonely_seconds, lambda: supervisor.engine_pid != pid)

    def _has_usable_beside(self, name: str) -> bool:
        return any(usable != name for usable in self.hub.usable)

    @contextlib.contextmanager
    def _draining(self, name: str) -> Iterator[None]:
        """Send requests to a replica again if draining it is cancelled, because the server shuts down."""
        try:
            yield
        except asyncio.CancelledError:
            if self.hub.link(name) is not None:
                self.hub.end_drain(name)
            raise

    async def _discard(self, supervisor: EngineSupervisor) -> None:
        """Close a replica, and keep its counts."""
        self.supervisors.remove(supervisor)
        self._closing.append(supervisor)  # the server may shut down meanwhile: see `close`
        self._share_cores()
        await supervisor.close()
        self._closing.remove(supervisor)
        self._removed.absorb(supervisor.tally)
        self._num_removed_restarts += supervisor.num_failures
