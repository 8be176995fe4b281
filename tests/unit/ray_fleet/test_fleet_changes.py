"""Whatever state a fleet is in, it gets to the wanted one, and never ends a ready replica too early."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from octavo.ray.fleet_changes import changes_of
from octavo.ray.spec import PlacedReplica, RayFleetStatus, ReplicaSlot, parse_actor_name
from octavo.replica.report import ReplicaReport

NEW, OLD = "new", "old"
REPORT = ReplicaReport(
    name="r",
    address="127.0.0.1:1",
    is_ready=True,
    is_draining=False,
    queue_seconds=0.0,
    num_sequences=0,
    max_running=1,
)
UNPLACED, STARTING = None, PlacedReplica("node", None, "starting")
READY, FORGOTTEN = PlacedReplica("node", REPORT), PlacedReplica("node", REPORT, is_ending=True)


@dataclass
class SimulatedCluster:
    """A cluster that ends replicas one step after it was asked to, and starts them in two."""

    replicas: dict[ReplicaSlot, PlacedReplica | None]
    ending: set[ReplicaSlot] = field(default_factory=set)

    def step(self, num_wanted: int, digest: str = NEW, *, is_ending: bool = False) -> None:
        for slot in self.ending:
            del self.replicas[slot]
        status = RayFleetStatus(num_wanted, digest, dict(self.replicas))
        changes = changes_of(status, frozenset(), is_ending=is_ending)
        assert len(set(changes.end)) == len(changes.end)
        assert not set(changes.start) & self.replicas.keys()
        self.ending = set(changes.end)
        for slot, one in self.replicas.items():
            if slot.digest == digest and not (one is not None and one.is_ending):  # others cannot start
                self.replicas[slot] = STARTING if one is UNPLACED else READY
        self.replicas |= dict.fromkeys(changes.start)

    @property
    def num_ready(self) -> int:
        return len([s for s, one in self.replicas.items() if one == READY and s not in self.ending])


slots = st.builds(ReplicaSlot, st.sampled_from([NEW, OLD]), st.integers(0, 6))
states = st.dictionaries(slots, st.sampled_from([UNPLACED, STARTING, READY, FORGOTTEN]), max_size=8)


@given(states, st.integers(1, 5))
def test_every_state_leads_to_the_wanted_one(
    replicas: dict[ReplicaSlot, PlacedReplica | None], num_wanted: int
) -> None:
    cluster = SimulatedCluster(dict(replicas))
    num_ready = min(cluster.num_ready, num_wanted)
    for _ in range(60):
        cluster.step(num_wanted)
        # One replica may be replaced at a time.
        assert cluster.num_ready >= num_ready - 1
        num_ready = max(num_ready, min(cluster.num_ready, num_wanted))
    assert list(cluster.replicas.values()) == [READY] * num_wanted
    assert {slot.digest for slot in cluster.replicas} == {NEW}


@given(states)
def test_a_fleet_that_ends_has_no_replicas(replicas: dict[ReplicaSlot, PlacedReplica | None]) -> None:
    cluster = SimulatedCluster(dict(replicas))
    for _ in range(2):
        cluster.step(3, is_ending=True)
    assert cluster.replicas == {}


def test_a_mistake_is_corrected_by_the_next_command() -> None:
    """Replicas with wrong options are never ready. They do not delay their own replacement."""
    cluster = SimulatedCluster({ReplicaSlot(OLD, 0): STARTING, ReplicaSlot(OLD, 1): UNPLACED})
    cluster.step(2)
    assert cluster.ending == {ReplicaSlot(OLD, 0), ReplicaSlot(OLD, 1)}
    assert len(cluster.replicas) == 4


def test_names_of_actors() -> None:
    slot = ReplicaSlot("0a1b2c3d", 12)
    assert parse_actor_name("octavo", slot.actor_name("octavo")) == slot
    assert parse_actor_name("other", slot.actor_name("octavo")) is None
    assert parse_actor_name("octavo", "fleet:octavo") is None
