"""What an operator sees of the replicas: the body of GET /octavo/fleet."""

from enum import StrEnum

import msgspec


class ReplicaState(StrEnum):
    STARTING = "starting"  # its first engine is being loaded
    READY = "ready"
    SUSPECTED = "suspected"  # its engine does not respond
    DRAINING = "draining"  # its requests move to other replicas
    RESTARTING = "restarting"  # its next engine is being loaded
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
    restarts: int
    requests: int  # in flight, that were sent to this replica
    sequences: int
    running: int  # sequences in slots
    steps: int  # like the following ones, of the current engine
    tokens: int
    step_seconds: float  # total of all steps
    kv_blocks_used: int  # by sequences; idle blocks of the prefix cache do not count
    kv_blocks_total: int
    fingerprint: str | None
    problem: str | None = None  # why it has no engine that is ready


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
    waiting: int  # of them, those that no replica has
    moves: int  # since the start, requests that were sent to another engine than the first
    replicas: tuple[ReplicaStatus, ...]
    operations: tuple[OperationStatus, ...]  # queued and running ones, and the last that ended
