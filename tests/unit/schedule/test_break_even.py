"""How many tokens are worth drafting."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.schedule.break_even import ASSUMED_SLOPE, MARGIN, MIN_SLOPE, RowCosts, worth_drafting

# Multiples of 1/16, so that different chances differ by more than any rounding.
CHANCES = st.integers(0, 16).map(lambda sixteenths: sixteenths / 16)
UNLIMITED = 10_000


def measured(fixed: float, per_row: float) -> RowCosts:
    costs = RowCosts()
    for num_rows in (1, 2, 3, 5, 8):
        costs.note(num_rows, fixed + per_row * num_rows)
    return costs


# From steps that only read weights to steps that only compute.
COSTS = st.integers(0, 16).map(lambda part: measured(16 - part, part / 4))


def throughput(
    depths: tuple[int, ...] | list[int], chances: list[float], num_rows: int, costs: RowCosts
) -> float:
    fixed, per_row = costs.at(num_rows)
    drafted = sum(
        chance**depth for chance, last in zip(chances, depths, strict=True) for depth in range(1, last + 1)
    )
    return (num_rows + drafted) / (fixed + per_row * (num_rows + sum(depths)))


@given(
    st.lists(CHANCES, min_size=1, max_size=3), st.integers(0, 6), st.integers(0, 4), st.integers(0, 9), COSTS
)
def test_no_other_depths_are_better_by_more_than_the_margin(
    chances: list[float], others: int, max_depth: int, max_total: int, costs: RowCosts
) -> None:
    num_rows = len(chances) + others
    depths = worth_drafting(chances, num_rows, max_depth, max_total, costs)
    assert len(depths) == len(chances)
    assert all(0 <= depth <= max_depth for depth in depths)
    assert sum(depths) <= max_total
    all_depths = [one for one in product(range(max_depth + 1), repeat=len(chances)) if sum(one) <= max_total]
    best = max(throughput(one, chances, num_rows, costs) for one in all_depths)
    assert throughput(depths, chances, num_rows, costs) >= best / MARGIN * (1 - 1e-9)


@given(st.lists(CHANCES, min_size=1, max_size=64), st.integers(0, 8), st.integers(0, 16), COSTS)
def test_no_draft_is_below_its_break_even(
    chances: list[float], others: int, max_depth: int, costs: RowCosts
) -> None:
    num_rows = len(chances) + others
    depths = worth_drafting(chances, num_rows, max_depth, UNLIMITED, costs)
    reached = throughput(depths, chances, num_rows, costs)
    assert reached >= throughput([0] * len(chances), chances, num_rows, costs)
    break_even = costs.at(num_rows).per_row * reached
    for chance, depth in zip(chances, depths, strict=True):
        assert depth == 0 or chance**depth >= break_even * (1 - 1e-9)


@given(st.lists(CHANCES, min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 20), COSTS, st.data())
def test_a_better_chance_gives_more_drafts_to_its_sequence_and_fewer_to_others(
    chances: list[float], max_depth: int, max_total: int, costs: RowCosts, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(chances) - 1))
    raised = list(chances)
    raised[index] = data.draw(CHANCES.filter(lambda chance: chance >= chances[index]))
    before = worth_drafting(chances, len(chances), max_depth, max_total, costs)
    after = worth_drafting(raised, len(chances), max_depth, max_total, costs)
    assert after.pop(index) >= before.pop(index)
    assert all(now <= earlier for now, earlier in zip(after, before, strict=True))


def test_a_step_that_only_reads_weights_drafts_much_and_one_that_only_computes_drafts_nothing() -> None:
    reading = measured(fixed=1.0, per_row=0.0)
    assert worth_drafting([0.99], 1, 8, UNLIMITED, reading) == [8]
    computing = RowCosts()
    for num_rows in (40, 44, 48, 56):
        computing.note(num_rows, 0.01 * num_rows)
    assert worth_drafting([1.0] * 48, 48, 8, UNLIMITED, computing) == [0] * 48


def test_costs_between_them_draft_until_the_margin() -> None:
    # Break-even of the drafts: 1.1 * 0.1 * (1 / 1.1), then 1.1 * 0.1 * (1.8 / 1.2), ...
    costs = measured(fixed=1.0, per_row=0.1)
    tokens, seconds, depth = 1.0, 1.1, 0
    while 0.8 ** (depth + 1) > MARGIN * 0.1 * tokens / seconds:
        depth += 1
        tokens, seconds = tokens + 0.8**depth, seconds + 0.1
    assert worth_drafting([0.8], 1, 16, UNLIMITED, costs) == [depth]
    assert 1 < depth < 16


def test_the_limit_goes_to_the_best_chances() -> None:
    costs = measured(fixed=1.0, per_row=0.001)
    assert worth_drafting([0.5, 0.9, 0.8], 3, 2, 3, costs) == [0, 2, 1]
    assert worth_drafting([0.9, 0.9], 2, 0, 3, costs) == [0, 0]
    assert worth_drafting([0.9, 0.9], 2, 3, 0, costs) == [0, 0]
    assert worth_drafting([], 0, 3, 3, costs) == []


def test_costs_are_those_that_were_measured() -> None:
    assert measured(1.0, 0.25).at(4) == pytest.approx((1.0, 0.25))


@pytest.mark.parametrize("num_steps", [1, 50])
def test_rows_that_do_not_vary_give_the_minimum(num_steps: int) -> None:
    costs = RowCosts()
    for _ in range(num_steps):
        costs.note(4, 0.5)
    assert costs.is_known
    assert costs.at(9).per_row > 0
    assert costs.at(9) == pytest.approx((0.5 - 4 * MIN_SLOPE * 0.5, MIN_SLOPE * 0.5))


@pytest.mark.parametrize("points", [[], [(0, 0.0)], [(3, 0.0), (5, 0.0)], [(3, math.nan)]])
def test_unknown_costs_are_assumed(points: list[tuple[int, float]]) -> None:
    costs = RowCosts()
    for num_rows, seconds in points:
        costs.note(num_rows, seconds)
    assert not costs.is_known
    assert costs.at(4) == pytest.approx((1 - 4 * ASSUMED_SLOPE, ASSUMED_SLOPE))
    assert costs.at(48) == pytest.approx((0, 1 / 48))
    assert worth_drafting([1.0] * 48, 48, 8, UNLIMITED, costs) == [0] * 48
    assert worth_drafting([0.9], 1, 8, UNLIMITED, costs)[0] > 0
