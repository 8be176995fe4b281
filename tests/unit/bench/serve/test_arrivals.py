"""Requests arrive at the requested rate, and at the same times for the same seed."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.arrivals import (
    Arrivals,
    AtOnce,
    Bursts,
    Closed,
    Open,
    Poisson,
    Steady,
    parse_arrivals,
)
from octavo.errors import ConfigError

RATES = st.floats(0.1, 1000)
OPEN = st.one_of(
    RATES.map(Poisson), RATES.map(Steady), st.builds(Bursts, st.integers(1, 50), RATES), st.just(AtOnce())
)


@given(OPEN, st.integers(1, 200), st.integers())
def test_times_start_at_zero_are_sorted_and_reproducible(arrivals: Open, count: int, seed: int) -> None:
    times = arrivals.times(count, random.Random(seed))
    assert len(times) == count
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times == arrivals.times(count, random.Random(seed))


def test_poisson_arrivals_have_their_rate_and_independent_gaps() -> None:
    times = Poisson(8.0).times(20_001, random.Random(1))
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert variance == pytest.approx(mean**2, rel=0.1)  # exponential
    neighbours = sum((a - mean) * (b - mean) for a, b in pairwise(gaps)) / len(gaps)
    assert abs(neighbours / variance) < 0.05
    assert times != Poisson(8.0).times(20_001, random.Random(2))


@given(RATES, st.integers(2, 100))
def test_steady_arrivals_have_equal_gaps(rate: float, count: int) -> None:
    times = Steady(rate).times(count, random.Random(0))
    assert times[-1] == pytest.approx((count - 1) / rate)
    assert times[1] == pytest.approx(1 / rate)


def test_bursts_arrive_together() -> None:
    assert Bursts(3, 2.0).times(8, random.Random(0)) == [0, 0, 0, 2, 2, 2, 4, 4]


@pytest.mark.parametrize("arrivals", [Poisson(0.5), Steady(4.0), Bursts(8, 2.5), AtOnce(), Closed(16)])
def test_the_text_form_can_be_parsed(arrivals: Arrivals) -> None:
    assert parse_arrivals(str(arrivals)) == arrivals


@pytest.mark.parametrize(
    "text", ["", "poisson", "poisson:0", "steady:x", "bursts:8", "bursts:0x1", "closed:1.5", "closed:0", "4"]
)
def test_invalid_arrival_patterns_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an arrival pattern: use poisson:RATE"):
        parse_arrivals(text)
