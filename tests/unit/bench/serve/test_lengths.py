"""Lengths are those of the distribution, for every seed; what is typed can be typed again."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.lengths import (
    CONVERSATION_OUTPUT,
    CONVERSATION_PROMPT,
    Fixed,
    Lengths,
    LogNormal,
    LogUniform,
    Mix,
    drawn,
    parse_lengths,
)
from octavo.errors import ConfigError

MIX = Mix(((0.75, 1024), (0.25, 128)))
ALL: tuple[Lengths, ...] = (
    Fixed(128),
    LogUniform(16, 1024),
    MIX,
    CONVERSATION_PROMPT,
    CONVERSATION_OUTPUT,
    LogNormal(50, 2.0, 1, 60),
)


@given(st.sampled_from(ALL), st.integers(1, 300), st.integers(), st.integers())
def test_every_seed_asks_for_the_same_work(lengths: Lengths, count: int, one: int, other: int) -> None:
    first, second = (drawn(lengths, count, random.Random(seed)) for seed in (one, other))
    assert sorted(first) == sorted(second)
    assert first == drawn(lengths, count, random.Random(one))


def test_seeds_decide_the_order() -> None:
    orders = {tuple(drawn(MIX, 24, random.Random(seed))) for seed in range(8)}
    assert len(orders) > 1


@given(st.sampled_from(ALL), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_quantiles_rise(lengths: Lengths, one: float, other: float) -> None:
    if not isinstance(lengths, Mix):  # whose parts are in the order that they were given
        assert lengths.quantile(min(one, other)) <= lengths.quantile(max(one, other))
    assert lengths.quantile(one) >= 1


def test_shares_are_exact() -> None:
    assert sorted(drawn(MIX, 24, random.Random(0))) == [128] * 6 + [1024] * 18


@pytest.mark.parametrize("lengths", [CONVERSATION_PROMPT, CONVERSATION_OUTPUT])
def test_conversations_have_their_mean_but_for_the_cuts(lengths: LogNormal) -> None:
    uncut = LogNormal(lengths.mean, lengths.sigma, 1, 1 << 30)
    tokens = drawn(uncut, 100_000, random.Random(0))
    assert sum(tokens) / len(tokens) == pytest.approx(lengths.mean, rel=0.02)
    cut = drawn(lengths, 1000, random.Random(0))
    assert (min(cut), max(cut)) == (max(lengths.low, min(cut)), lengths.high)


def test_widely_mixed_lengths_are_even_on_a_logarithmic_scale() -> None:
    tokens = drawn(LogUniform(16, 1024), 600, random.Random(0))
    for low in (16, 32, 64, 128, 256, 512):
        assert sum(low <= count < 2 * low for count in tokens) == pytest.approx(100, abs=4)


@pytest.mark.parametrize("lengths", [Fixed(128), LogUniform(16, 1024), MIX, CONVERSATION_PROMPT])
def test_what_is_said_can_be_typed(lengths: Lengths) -> None:
    assert parse_lengths(str(lengths), CONVERSATION_PROMPT) == lengths


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "512-16", "0-5", "0.5*10", "0.5*10+0.5*0", "1.2.3*5", "ten", "1*"]
)
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no length: give tokens"):
        parse_lengths(text, CONVERSATION_PROMPT)
