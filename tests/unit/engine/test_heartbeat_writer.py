"""Heartbeat timeouts, learned from the durations of earlier steps."""

from pathlib import Path

import pytest

from octavo.engine.heartbeat_writer import TIMEOUT_FACTOR, HeartbeatWriter
from octavo.link.heartbeat import MAX_SLOTS, STARTING_TIMEOUT, HeartbeatFile, Phase, request_number
from octavo.plan import SequenceSlice, SlotOpening, StepPlan, StepResult
from octavo.protocol import SamplingParams

PARAMS = SamplingParams()


@pytest.fixture
def heartbeat(tmp_path: Path) -> HeartbeatFile:
    HeartbeatFile.create(tmp_path / "heartbeat")
    return HeartbeatFile.open(tmp_path / "heartbeat")


def test_no_timeout_is_known_before_the_first_step(heartbeat: HeartbeatFile) -> None:
    assert HeartbeatWriter(heartbeat).timeout(1) == STARTING_TIMEOUT


def test_larger_steps_get_proportional_time_and_smaller_ones_the_same(
    heartbeat: HeartbeatFile,
) -> None:
    heartbeat_writer = HeartbeatWriter(heartbeat)
    heartbeat_writer.learn(4, 0.5)
    assert heartbeat_writer.timeout(4) == TIMEOUT_FACTOR * 0.5
    assert heartbeat_writer.timeout(1) == TIMEOUT_FACTOR * 0.5
    assert heartbeat_writer.timeout(10) == TIMEOUT_FACTOR * 0.5 * 64


def test_a_measurement_at_one_size_bounds_all_others(heartbeat: HeartbeatFile) -> None:
    heartbeat_writer = HeartbeatWriter(heartbeat)
    heartbeat_writer.learn(1, 1.0)
    heartbeat_writer.learn(8, 2.0)
    assert heartbeat_writer.timeout(8) == TIMEOUT_FACTOR * 2.0
    assert heartbeat_writer.timeout(9) == TIMEOUT_FACTOR * 4.0
    assert heartbeat_writer.timeout(2) == TIMEOUT_FACTOR * 2.0


def test_the_effect_of_one_slow_step_fades(heartbeat: HeartbeatFile) -> None:
    heartbeat_writer = HeartbeatWriter(heartbeat)
    heartbeat_writer.learn(1, 60.0)
    for _ in range(1000):
        heartbeat_writer.learn(1, 0.01)
    assert heartbeat_writer.timeout(1) < 1.0


def test_the_heartbeat_is_written_before_the_step_is_executed(heartbeat: HeartbeatFile) -> None:
    heartbeat_writer = HeartbeatWriter(heartbeat)
    heartbeat_writer.phase = Phase.SERVING
    heartbeat_writer.learn(2, 0.25)
    seen = []

    def execute(plan: StepPlan) -> StepResult:
        seen.append(heartbeat.read())
        return StepResult(())

    before = heartbeat.read().written_at
    heartbeat_writer.around(execute)(StepPlan(1, (), (), (SequenceSlice(0, 0, (1, 2, 3), 0, (0,), 1, ()),)))
    assert seen[0].phase is Phase.SERVING
    assert seen[0].timeout == TIMEOUT_FACTOR * 0.25
    assert seen[0].written_at >= before


def test_the_heartbeat_names_the_request_if_a_step_has_only_one(heartbeat: HeartbeatFile) -> None:
    late: tuple[int, ...] = ()
    seen: list[str] = []

    def execute(plan: StepPlan) -> StepResult:
        seen.append(heartbeat.read().request_id)
        return StepResult((), late)

    def step(*slots: int, opened: dict[int, str] | None = None, closed: tuple[int, ...] = ()) -> str:
        openings = [SlotOpening(slot, PARAMS, 0, (), 1, (1,), name) for slot, name in (opened or {}).items()]
        slices = [SequenceSlice(slot, 0, (1,), 0, (0,), 1) for slot in slots]
        execute_with_heartbeat(StepPlan(1, closed, tuple(openings), tuple(slices)))
        return seen[-1]

    execute_with_heartbeat = HeartbeatWriter(heartbeat).around(execute)
    assert step(0, opened={0: "a"}) == "a"
    assert step(0, 1, opened={1: "a"}) == "a", "two choices of one request"
    assert step(0, 1, 2, opened={2: "b"}) == ""
    assert step(2) == "b"
    assert step(0, opened={3: "c"}) == "", "opening a slot is work too"
    assert step() == "", "no request"
    late = (2,)
    assert step(0) == "a"
    assert step(0) == "", "the grammar of another request is being computed"
    assert step(0, closed=(2,)) == "a"
    assert step(0, 2, opened={2: "d"}) == ""
    assert step(2) == "d", "late itself, and the only request"


def test_the_slots_name_all_requests_before_the_step_is_executed(heartbeat: HeartbeatFile) -> None:
    seen: list[frozenset[int] | None] = []

    def execute(plan: StepPlan) -> StepResult:
        seen.append(heartbeat.in_slots())
        return StepResult(())

    def step(opened: dict[int, str], closed: tuple[int, ...] = ()) -> frozenset[int] | None:
        openings = [SlotOpening(slot, PARAMS, 0, (), 1, (1,), name) for slot, name in opened.items()]
        execute_with_heartbeat(StepPlan(1, closed, tuple(openings), ()))
        return seen[-1]

    execute_with_heartbeat = HeartbeatWriter(heartbeat).around(execute)
    a, b, c = map(request_number, "abc")
    assert step({0: "a", 1: "a", 7: "b"}) == frozenset({a, b})
    assert step({}) == frozenset({a, b})
    assert step({7: "c"}, closed=(7, 1)) == frozenset({a, c})
    assert step({}, closed=(0,)) == frozenset({c})
    assert step({MAX_SLOTS - 2: "b"}) == frozenset({b, c})
    assert step({MAX_SLOTS: "a"}) is None, "not all slots can be recorded"
