"""How long an engine may be silent, by its own experience."""

from pathlib import Path

import pytest

from octavo.engine.pulse import PATIENCE, Pulse
from octavo.link.status_page import PATIENCE_STARTING, Phase, StatusPage
from octavo.plan import SequenceSlice, StepPlan, StepResult


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
