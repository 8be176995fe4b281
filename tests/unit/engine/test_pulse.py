"""How long an engine may be silent, by its own experience."""

from pathlib import Path

import pytest

from octavo.engine.pulse import PATIENCE, Pulse
from octavo.link.status_page import PATIENCE_STARTING, Phase, StatusPage
from octavo.plan import SequenceSlice, SlotOpening, StepPlan, StepResult
from octavo.protocol import SamplingParams

PARAMS = SamplingParams()


@pytest.fixture
def page(tmp_path: Path) -> StatusPage:
    StatusPage.create(tmp_path / "page")
    return StatusPage.open(tmp_path / "page")


def test_before_the_first_step_nothing_is_known(page: StatusPage) -> None:
    assert Pulse(page).patience(1) == PATIENCE_STARTING


def test_a_larger_step_is_given_time_in_proportion_and_a_smaller_one_no_more(page: StatusPage) -> None:
    pulse = Pulse(page)
    pulse.learn(4, 0.5)
    assert pulse.patience(4) == PATIENCE * 0.5
    assert pulse.patience(1) == PATIENCE * 0.5
    assert pulse.patience(10) == PATIENCE * 0.5 * 64


def test_what_was_measured_at_any_size_bounds_every_other(page: StatusPage) -> None:
    pulse = Pulse(page)
    pulse.learn(1, 1.0)
    pulse.learn(8, 2.0)
    assert pulse.patience(8) == PATIENCE * 2.0
    assert pulse.patience(9) == PATIENCE * 4.0
    assert pulse.patience(2) == PATIENCE * 2.0


def test_one_slow_moment_fades(page: StatusPage) -> None:
    pulse = Pulse(page)
    pulse.learn(1, 60.0)
    for _ in range(1000):
        pulse.learn(1, 0.01)
    assert pulse.patience(1) < 1.0


def test_the_page_is_stamped_before_the_step_is_executed(page: StatusPage) -> None:
    pulse = Pulse(page)
    pulse.phase = Phase.SERVING
    pulse.learn(2, 0.25)
    seen = []

    def execute(plan: StepPlan) -> StepResult:
        seen.append(page.read())
        return StepResult(())

    before = page.read().stamp
    pulse.around(execute)(StepPlan(1, (), (), (SequenceSlice(0, 0, (1, 2, 3), 0, (0,), 1, ()),)))
    assert seen[0].phase is Phase.SERVING
    assert seen[0].patience == PATIENCE * 0.25
    assert seen[0].stamp >= before


def test_the_page_names_the_request_of_a_step_that_is_for_one_alone(page: StatusPage) -> None:
    late: tuple[int, ...] = ()
    seen: list[str] = []

    def execute(plan: StepPlan) -> StepResult:
        seen.append(page.read().request_id)
        return StepResult((), late)

    def step(*slots: int, opened: dict[int, str] | None = None, closed: tuple[int, ...] = ()) -> str:
        openings = [SlotOpening(slot, PARAMS, 0, (), 1, (1,), name) for slot, name in (opened or {}).items()]
        slices = [SequenceSlice(slot, 0, (1,), 0, (0,), 1) for slot in slots]
        stamped(StepPlan(1, closed, tuple(openings), tuple(slices)))
        return seen[-1]

    stamped = Pulse(page).around(execute)
    assert step(0, opened={0: "a"}) == "a"
    assert step(0, 1, opened={1: "a"}) == "a", "two choices of one request"
    assert step(0, 1, 2, opened={2: "b"}) == ""
    assert step(2) == "b"
    assert step(0, opened={3: "c"}) == "", "a slot that is opened is work too"
    assert step() == "", "nobody"
    late = (2,)
    assert step(0) == "a"
    assert step(0) == "", "the grammar of another is being worked on meanwhile"
    assert step(0, closed=(2,)) == "a"
    assert step(0, 2, opened={2: "d"}) == ""
    assert step(2) == "d", "late itself, and nobody else is there"
