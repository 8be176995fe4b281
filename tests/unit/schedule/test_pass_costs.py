"""How many tokens are worth drafting with a model, whose passes take time of their own."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.plan import DraftPass
from octavo.schedule.break_even import MARGIN, Duration
from octavo.schedule.pass_costs import ASSUMED_PASS, PassCosts, StepForecast, worth_granting

CHANCES = st.integers(0, 16).map(lambda sixteenths: sixteenths / 16)
PASSES = st.builds(
    Duration, st.integers(0, 8).map(lambda part: part / 8), st.integers(0, 16).map(lambda part: part / 32)
)
UNLIMITED = 10_000


def speed(depths: list[int], chances: list[float], step: StepForecast, passes: Duration) -> float:
    """Return tokens per second."""
    gain = sum(chance**k for chance, last in zip(chances, depths, strict=True) for k in range(1, last + 1))
    cost = passes.per_row * sum(depths) + passes.fixed * max(depths, default=0)
    return (step.tokens + gain) / (step.seconds + cost)


@given(
    st.lists(CHANCES, min_size=1, max_size=12),
    st.integers(0, 6),
    st.integers(0, 8),
    st.integers(0, 40),
    PASSES,
)
def test_drafts_of_the_model_never_lose(
    chances: list[float], others: int, max_depth: int, max_total: int, passes: Duration
) -> None:
    step = StepForecast(float(len(chances) + others), 1.0)
    depths = worth_granting(chances, step, passes, max_depth, max_total)
    assert len(depths) == len(chances)
    assert all(0 <= depth <= max_depth for depth in depths)
    assert sum(depths) <= max_total
    assert speed(depths, chances, step, passes) >= step.tokens / step.seconds * (1 - 1e-9)
    for chance, depth in zip(chances, depths, strict=True):
        assert depth == 0 or chance**depth >= passes.per_row * step.tokens / step.seconds * (1 - 1e-9)


@given(CHANCES, st.integers(0, 5), PASSES)
def test_for_one_sequence_no_other_depth_is_better_by_more_than_the_margin(
    chance: float, others: int, passes: Duration
) -> None:
    step = StepForecast(1.0 + others, 1.0)
    (depth,) = worth_granting([chance], step, passes, 6, UNLIMITED)
    best = max(speed([other], [chance], step, passes) for other in range(7))
    assert speed([depth], [chance], step, passes) >= best / MARGIN * (1 - 1e-9)
    assert step.best_rate(chance, sum(passes), 6) == pytest.approx(best)


def test_sequences_share_a_pass() -> None:
    """A pass that is not worth it for one sequence may be worth it for several."""
    step, passes = StepForecast(8.0, 1.0), Duration(0.3, 0.0)
    assert worth_granting([0.7], step, passes, 4, UNLIMITED) == [0]
    assert worth_granting([0.7] * 8, step, passes, 4, UNLIMITED)[0] > 0


def test_the_limit_goes_to_the_best_chances() -> None:
    free = Duration(0.0, 0.001)
    assert worth_granting([0.5, 0.9, 0.8], StepForecast(3.0, 1.0), free, 4, 2) == [0, 1, 1]
    assert worth_granting([0.9, 0.8], StepForecast(2.0, 1.0), free, 4, 3) == [2, 1]
    assert worth_granting([], StepForecast(1.0, 1.0), free, 4, 3) == []


def test_costs_are_those_that_were_measured() -> None:
    costs = PassCosts()
    assert sum(costs.at(2.0)) == pytest.approx(2 * ASSUMED_PASS)
    assert costs.catch_up_seconds(64, 2.0) == pytest.approx(2.0)
    for num_rows, _ in product((1, 2, 5), range(20)):
        costs.note([DraftPass(num_rows, 0.5 + 0.25 * num_rows), DraftPass(100, 7.0, catches_up=True)], 2.0)
    assert costs.at(99.0) == pytest.approx((0.5, 0.25))
    assert costs.catch_up_seconds(50, 99.0) == pytest.approx(3.5)


def test_a_pause_in_the_first_pass_is_outweighed_by_a_few_others() -> None:
    costs = PassCosts()
    costs.note([DraftPass(1, 1000.0), DraftPass(100, 1000.0, catches_up=True)], 1.0)
    for _ in range(4):
        costs.note([DraftPass(1, 0.25), DraftPass(100, 0.25, catches_up=True)], 1.0)
    assert sum(costs.at(1.0)) < 0.5
    assert costs.catch_up_seconds(100, 1.0) < 2.0
