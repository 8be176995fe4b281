"""One replica, wherever it runs, and what an operator sees of it."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from octavo.errors import UnknownReplica
from octavo.frontend.replica_link import ReplicaLink
from octavo.frontend.supervisor import EngineState
from octavo.link.heartbeat import Heartbeat
from octavo.observe.engine_tally import EngineTally
from octavo.protocol import EngineFacts
from octavo.status import ReplicaState, ReplicaStatus


class Replica(Protocol):
    """What a server reads of a replica. `EngineSupervisor` and `RemoteReplica` implement it."""

    name: str
    tally: EngineTally

    @property
    def state(self) -> EngineState: ...

    @property
    def link(self) -> ReplicaLink | None:
        """What the hub knows about it; None if it was never reached."""

    @property
    def facts(self) -> EngineFacts | None:
        """Of the engine that was ready last."""

    @property
    def ready_at(self) -> float | None:
        """When the current engine was ready; None: it is not."""

    @property
    def last_death(self) -> str | None:
        """Why there is no engine, or no connection to it, for the operator of the server."""

    @property
    def engine_pid(self) -> int | None: ...

    @property
    def engine_heartbeat(self) -> Heartbeat | None: ...

    @property
    def is_usable(self) -> bool: ...

    @property
    def num_restarts(self) -> int: ...

    @property
    def num_failures(self) -> int:
        """Engines that were ready, and died or hung."""

    @property
    def refused_connections(self) -> Mapping[str, int]:
        """How many peers without a key of the fleet have tried to connect to it, by reason."""


AnyReplica = TypeVar("AnyReplica", bound=Replica)


def replica_status(replica: Replica) -> ReplicaStatus:
    """Return what the operator of the server sees of a replica."""
    link, counts, since = replica.link, replica.tally.counts, replica.ready_at
    live = None if since is None else replica.tally.stats
    return ReplicaStatus(
        name=replica.name,
        state=_state(replica),
        pid=replica.engine_pid,
        uptime_seconds=None if since is None else round(time.monotonic() - since, 3),
        requests=0 if link is None else len(link.requests),
        sequences=0 if link is None else link.load,
        running=0 if live is None else live.num_running,
        waiting=0 if live is None else live.num_waiting,
        kv_blocks_used=0 if live is None else live.blocks_total - live.blocks_free - live.blocks_idle,
        kv_blocks_total=0 if live is None else live.blocks_total,
        fingerprint=None if replica.facts is None else replica.facts.system_fingerprint,
        problem=None if since is not None else replica.last_death,
        restarts=replica.num_restarts,
        failures=replica.num_failures,
        suspicions=0 if link is None else link.num_suspicions,
        moves_in=0 if link is None else link.num_moves_in,
        moves_out=0 if link is None else link.num_moves_out,
        steps=counts.steps,
        step_seconds=round(counts.step_seconds, 6),
        tokens=counts.tokens_sampled,
        prompt_tokens=counts.prompt_tokens,
        prompt_tokens_cached=counts.prompt_tokens_cached,
        preemptions=counts.preemptions,
        refused_connections=dict(replica.refused_connections),
    )


def _state(replica: Replica) -> ReplicaState:
    link = replica.link
    if replica.state is EngineState.READY and link is not None:
        if link.is_draining and not link.is_suspected:
            return ReplicaState.DRAINING
        is_silent = link.is_suspected or link.channel is None
        return ReplicaState.SUSPECTED if is_silent else ReplicaState.READY
    if replica.state in (EngineState.FAILED, EngineState.CLOSED):
        return ReplicaState.FAILED
    if replica.state is EngineState.UNREACHABLE:
        return ReplicaState.UNREACHABLE
    return ReplicaState.STARTING if replica.facts is None else ReplicaState.RESTARTING


def find_replica(replicas: Collection[AnyReplica], name: str) -> AnyReplica:
    """Return the replica of this name. Raises UnknownReplica."""
    found = next((one for one in replicas if one.name == name), None)
    if found is None:
        names = ", ".join(one.name for one in replicas)
        raise UnknownReplica(f"there is no replica {name[:40]!r}; the replicas are {names}")
    return found


def shown_replica(replicas: Iterable[AnyReplica]) -> AnyReplica | None:
    """Return the replica whose engine is shown, unless a watcher asks for a certain one: the first that is
    usable, or else the first that is ready."""
    ready = [one for one in replicas if one.state is EngineState.READY]
    return next((one for one in ready if one.is_usable), ready[0] if ready else None)


def best_state(states: list[EngineState]) -> EngineState:
    """Return the state of all replicas together: that of the one nearest to ready."""
    order = (
        EngineState.READY,
        EngineState.RESTARTING,
        EngineState.STARTING,
        EngineState.UNREACHABLE,
        EngineState.FAILED,
    )
    return next((state for state in order if state in states), EngineState.CLOSED)
