"""Replicas on this machine: each is a child process, with a supervisor of its own."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from octavo.frontend.engine_process import ENGINE_MODULE, FirstEngine
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineState, EngineSupervisor
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import Heartbeat
from octavo.observe.engine_tally import EngineTally, EngineTotals
from octavo.protocol import EngineFacts
from octavo.view import EngineView


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
        self._hub = hub
        others = msgspec.structs.replace(settings, profile=None)  # one engine writes the trace
        self.supervisors = [
            EngineSupervisor(
                others if number else settings,
                hub,
                name=f"r{number}",
                module=module,
                first=None if number else first,
            )
            for number in range(num_replicas)
        ]
        self._task: asyncio.Task[None] | None = None
        self._has_failed = asyncio.Event()
        self._watched: EngineSupervisor | None = None
        self.on_view: Callable[[EngineView], None] | None = None  # see `watch`

    def start(self) -> None:
        self.supervisors[0].start()
        self._task = asyncio.create_task(self._oversee(), name="octavo-replicas")

    async def close(self) -> None:
        """Stop all engines. In-flight requests end with an error. May be called more than once."""
        self._hub.give_up("the server is shutting down")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*(supervisor.close() for supervisor in self.supervisors))

    async def wait_until_ready(self) -> None:
        """Return when the first replica is ready, or never will be: see `state`."""
        await self.supervisors[0].wait_until_ready()

    async def wait_until_failed(self) -> None:
        """Return when no engine of any replica will be started again."""
        await self._has_failed.wait()

    async def replace_all(self) -> None:
        """Start a new engine at every replica, one after the other, while the others compute all requests."""
        for supervisor in self.supervisors:
            await supervisor.replace()
            await supervisor.wait_until_ready()

    def watch(self, seconds: float, interval: float) -> None:
        """Ask the engine of one replica to send views to `on_view` for `seconds`, one per `interval`."""
        watched = next((one for one in self.supervisors if one.state is EngineState.READY), None)
        if self._watched is not None and self._watched is not watched:
            self._watched.on_view = None
        self._watched = watched
        if watched is not None:
            watched.on_view = self.on_view
            watched.watch(seconds, interval)

    # -- of all replicas -----------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        """The best state of any replica."""
        states = [supervisor.state for supervisor in self.supervisors]
        order = (EngineState.READY, EngineState.RESTARTING, EngineState.STARTING, EngineState.FAILED)
        return next((state for state in order if state in states), EngineState.CLOSED)

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
        return sum(supervisor.num_restarts for supervisor in self.supervisors)

    @property
    def totals(self) -> EngineTotals:
        return EngineTally.total([supervisor.tally for supervisor in self.supervisors])

    # -- parts -----------------------------------------------------------------------------------------------

    async def _oversee(self) -> None:
        first, *others = self.supervisors
        await first.wait_until_ready()
        if first.facts is not None:
            for supervisor in others:
                supervisor.pin(first.facts)
                supervisor.start()
            for supervisor in others:
                await supervisor.wait_until_failed()
        await first.wait_until_failed()
        self._has_failed.set()
