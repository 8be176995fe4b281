"""The number of replicas follows the load, stays within its limits and does not alternate."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from octavo.fleet.scaling import UP_AFTER, FleetLoad, Scaler, ScalingRule

MAX_RUNNING = 8
RULE = ScalingRule(1, 8, target_seconds=2.0, down_after=60.0)


@dataclass
class SimulatedFleet:
    """Streams of one length that arrive at a constant rate. A replica starts within 10 s."""

    rule: ScalingRule = RULE
    wanted: int = 1
    waiting: float = 0.0
    running: float = 0.0
    now: float = 0.0
    changes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scaler = Scaler(self.rule)
        self.ready = self.wanted
        self.ready_at = 0.0

    def run(self, seconds: int, arrivals: float, stream_seconds: float = 20.0) -> None:
        """One step per second; `arrivals` are streams per second."""
        for _ in range(seconds):
            self.now += 1
            self.running -= self.running / stream_seconds
            self.waiting += arrivals
            begun = min(self.waiting, MAX_RUNNING * self.ready - self.running)
            self.waiting, self.running = self.waiting - begun, self.running + begun
            seconds_waiting = self.waiting / max(begun, 0.01)
            load = FleetLoad(
                seconds_waiting if self.waiting > 0.5 else 0.0,
                round(self.running + self.waiting),
                MAX_RUNNING,
            )
            if self.now >= self.ready_at:
                self.ready = self.wanted
            wanted = self.scaler.wanted(self.now, self.wanted, self.ready, load)
            if wanted != self.wanted:
                self.changes.append(wanted)
                self.wanted, self.ready_at = wanted, self.now + 10
            assert self.rule.minimum <= self.wanted <= self.rule.maximum


def test_replicas_are_added_under_load_and_removed_after_it() -> None:
    fleet = SimulatedFleet()
    fleet.run(300, arrivals=1.2)  # 24 streams at a time: 3 replicas
    assert 3 <= fleet.wanted <= 6
    assert fleet.waiting < 1
    fleet.run(600, arrivals=0.0)
    assert fleet.wanted == 1


@given(st.floats(0.0, 5.0))
def test_the_number_does_not_alternate_under_constant_load(arrivals: float) -> None:
    """After the load has settled, there is no further change for an hour."""
    fleet = SimulatedFleet()
    fleet.run(1800, arrivals)
    before = len(fleet.changes)
    fleet.run(3600, arrivals)
    assert len(fleet.changes) - before <= 1


@given(
    st.integers(1, 4).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 9))),
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.integers(0, 12),
            st.none() | st.builds(FleetLoad, st.floats(0, 1e6), st.integers(0, 1000), st.integers(1, 64)),
        )
    ),
)
def test_the_number_stays_within_its_limits(
    limits: tuple[int, int], reports: list[tuple[float, int, FleetLoad | None]]
) -> None:
    rule = ScalingRule(*limits)
    scaler, wanted, now = Scaler(rule), limits[0], 0.0
    for seconds, num_ready, load in reports:
        now += seconds
        before, wanted = wanted, scaler.wanted(now, wanted, num_ready, load)
        assert rule.minimum <= wanted <= rule.maximum
        assert wanted <= 2 * before
        if load is None or num_ready != before:
            assert wanted <= before  # a change is not complete yet


def test_a_short_wait_adds_nothing() -> None:
    scaler, busy = Scaler(RULE), FleetLoad(30.0, 20, MAX_RUNNING)
    assert scaler.wanted(0.0, 1, 1, busy) == 1
    assert scaler.wanted(UP_AFTER / 2, 1, 1, FleetLoad(0.0, 4, MAX_RUNNING)) == 1
    assert scaler.wanted(UP_AFTER, 1, 1, busy) == 1
    assert scaler.wanted(2 * UP_AFTER, 1, 1, busy) == 2


def test_a_replica_stays_while_the_others_would_be_full() -> None:
    scaler = Scaler(ScalingRule(1, 4, down_after=10.0))
    for second in range(100):
        assert scaler.wanted(float(second), 2, 2, FleetLoad(0.0, MAX_RUNNING // 2 + 1, MAX_RUNNING)) == 2
    assert scaler.wanted(101.0, 2, 2, FleetLoad(0.0, MAX_RUNNING // 2, MAX_RUNNING)) == 2
    assert scaler.wanted(112.0, 2, 2, FleetLoad(0.0, MAX_RUNNING // 2, MAX_RUNNING)) == 1


def test_a_replica_without_room_is_given_up_after_the_load() -> None:
    """Its node does not exist. The demand must not stay for ever."""
    scaler, quiet = Scaler(ScalingRule(1, 4, down_after=10.0)), FleetLoad(0.0, 2, MAX_RUNNING)
    assert scaler.wanted(0.0, 4, 3, quiet) == 4
    assert scaler.wanted(11.0, 4, 3, quiet) == 3
