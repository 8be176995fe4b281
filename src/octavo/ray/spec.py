"""What a fleet on a Ray cluster should be. These objects go through Ray: they have no key and no request."""

import hashlib
from dataclasses import dataclass

import msgspec

from octavo.fleet.scaling import ScalingRule
from octavo.replica.report import ReplicaReport

NAMESPACE = "octavo"  # of Ray actors
# Without a supervisor for this time, a replica ends. Long enough to restart the head of a cluster.
SUPERVISOR_TIMEOUT = 900.0


@dataclass(frozen=True)
class ReplicaSpec:
    """One replica, wherever it is placed."""

    fleet: str
    arguments: tuple[str, ...]  # of `octavo replica`. They name the key file; its content is on each machine
    cpus: float
    memory: int = 0  # bytes that Ray reserves; 0: none
    port: int = 0  # that it listens on; 0: any
    supervisor_timeout: float = SUPERVISOR_TIMEOUT

    @property
    def digest(self) -> str:
        """Replicas with equal digests have the same options."""
        encoded = msgspec.json.encode((self.arguments, self.cpus, self.memory, self.port))
        return hashlib.sha256(encoded).hexdigest()[:8]


@dataclass(frozen=True)
class FleetSpec:
    """The desired state of a fleet."""

    replica: ReplicaSpec
    rule: ScalingRule
    start: int  # number of replicas before any load is known

    @property
    def name(self) -> str:
        return self.replica.fleet


@dataclass(frozen=True)
class PlacedReplica:
    """What the supervising actor of a replica knows about it."""

    node_id: str  # of Ray
    report: ReplicaReport | None  # None: the process has not reported for a while
    problem: str | None = None  # why there is no report
    is_ending: bool = False  # the actor was asked to end it

    @property
    def is_ready(self) -> bool:
        if self.report is None or self.is_ending:
            return False
        return self.report.is_ready and not self.report.is_draining


@dataclass(frozen=True, order=True)
class ReplicaSlot:
    """The place of one replica in a fleet."""

    digest: str  # of its options
    number: int

    def actor_name(self, fleet: str) -> str:
        """The name of its supervising actor, and of the placement group."""
        return f"replica:{fleet}:{self.digest}:{self.number}"


@dataclass(frozen=True)
class RayFleetStatus:
    """A fleet at one moment."""

    num_wanted: int
    digest: str  # of replicas that are up to date
    # None: it is not placed yet, or its node does not answer
    replicas: dict[ReplicaSlot, PlacedReplica | None]

    @property
    def num_ready(self) -> int:
        """Replicas that are up to date and ready."""
        ready = [slot for slot, one in self.replicas.items() if one is not None and one.is_ready]
        return len([slot for slot in ready if slot.digest == self.digest])


def fleet_actor_name(fleet: str) -> str:
    return f"fleet:{fleet}"


def parse_actor_name(fleet: str, name: str) -> ReplicaSlot | None:
    """Return the slot in the name of a supervising actor or a group of this fleet; None for others."""
    kind, _, rest = name.partition(":")
    named, _, place = rest.partition(":")
    digest, _, number = place.partition(":")
    is_ours = kind == "replica" and named == fleet and digest and number.isdecimal()
    return ReplicaSlot(digest, int(number)) if is_ours else None
