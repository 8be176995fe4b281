"""What an operator sees of the replicas: the body of GET /octavo/fleet, and part of GET /octavo/view."""

from enum import StrEnum

import msgspec


class ReplicaState(StrEnum):
    STARTING = "starting"  # its first engine is being loaded
    READY = "ready"
    SUSPECTED = "suspected"  # its engine does not respond, or has just died
    DRAINING = "draining"  # its requests move to other replicas
    RESTARTING = "restarting"  # its next engine is being loaded
    UNREACHABLE = "unreachable"  # on another machine, and there is no connection to it
    FAILED = "failed"  # no engine will be started there again


class OperationState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # `problem` says why


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: ReplicaState
    pid: int | None  # of its engine process
    uptime_seconds: float | None  # of its engine, since it was ready; None: it is not
    requests: int  # in flight, that were sent to this replica
    sequences: int
    running: int  # sequences in slots
    waiting: int  # sequences that the engine has not started
    kv_blocks_used: int  # by sequences; idle blocks of the prefix cache do not count
    kv_blocks_total: int
    fingerprint: str | None
    problem: str | None = None  # why it has no engine that is ready
    # Counts of all engines of the replica, one after the other. They never decrease.
    restarts: int  # engines after the first
    failures: int  # engines that were ready, and died or hung
    suspicions: int  # times that its engine did not respond
    moves_in: int  # requests that continued here after another engine had begun with them
    moves_out: int  # requests that another engine continued: this one died, did not respond or was drained
    steps: int
    step_seconds: float
    tokens: int  # sampled, including those of audits and those that were not sent to a client
    prompt_tokens: int
    prompt_tokens_cached: int  # of them, those found in the prefix cache
    preemptions: int
    # Of a replica on another machine, since its agent has started, by reason: see `Refusal`.
    refused_connections: dict[str, int] = {}


class OperationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the operator. They run one after the other."""

    number: int
    kind: str  # drain, add, restart
    replica: str | None  # None: all, or (add) not known yet
    then: str | None  # of a drain: restart, remove
    state: OperationState
    restarted: tuple[str, ...] = ()  # replicas with a new engine so far
    seconds: float | None  # since it began
    problem: str | None = None


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    version: str
    fingerprint: str | None  # of all engines; None: none was ready yet
    requests: int  # in flight
    unsent: int  # of them, those that no replica has
    moves: int  # since the start, requests that were sent to another engine than the first
    replicas: tuple[ReplicaStatus, ...]
    operations: tuple[OperationStatus, ...]  # queued and running ones, and the last that ended
