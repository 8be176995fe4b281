"""Lengths follow their distribution for every seed; their text form can be parsed."""

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
    parse_lengths,
    shuffled_lengths,
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
def test_every_seed_gives_the_same_lengths(lengths: Lengths, count: int, one: int, other: int) -> None:
    first, second = (shuffled_lengths(lengths, count, random.Random(seed)) for seed in (one, other))
    assert sorted(first) == sorted(second)
    assert first == shuffled_lengths(lengths, count, random.Random(one))


def test_the_seed_determines_the_order() -> None:
    orders = {tuple(shuffled_lengths(MIX, 24, random.Random(seed))) for seed in range(8)}
    assert len(orders) > 1


@given(st.sampled_from(ALL), st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_quantiles_are_monotonic(lengths: Lengths, one: float, other: float) -> None:
    if not isinstance(lengths, Mix):  # the parts of a mix keep the order in which they were given
        assert lengths.quantile(min(one, other)) <= lengths.quantile(max(one, other))
    assert lengths.quantile(one) >= 1


def test_shares_are_exact() -> None:
    assert sorted(shuffled_lengths(MIX, 24, random.Random(0))) == [128] * 6 + [1024] * 18


@pytest.mark.parametrize("lengths", [CONVERSATION_PROMPT, CONVERSATION_OUTPUT])
def test_conversations_have_their_nominal_mean_before_truncation(lengths: LogNormal) -> None:
    uncut = LogNormal(lengths.mean, lengths.sigma, 1, 1 << 30)
    tokens = shuffled_lengths(uncut, 100_000, random.Random(0))
    assert sum(tokens) / len(tokens) == pytest.approx(lengths.mean, rel=0.02)
    cut = shuffled_lengths(lengths, 1000, random.Random(0))
    assert (min(cut), max(cut)) == (max(lengths.low, min(cut)), lengths.high)


def test_log_uniform_lengths_are_uniform_on_a_logarithmic_scale() -> None:
    tokens = shuffled_lengths(LogUniform(16, 1024), 600, random.Random(0))
    for low in (16, 32, 64, 128, 256, 512):
        assert sum(low <= count < 2 * low for count in tokens) == pytest.approx(100, abs=4)


@pytest.mark.parametrize("lengths", [Fixed(128), LogUniform(16, 1024), MIX, CONVERSATION_PROMPT])
def test_the_text_form_can_be_parsed(lengths: Lengths) -> None:
    assert parse_lengths(str(lengths), CONVERSATION_PROMPT) == lengths


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "512-16", "0-5", "0.5*10", "0.5*10+0.5*0", "1.2.3*5", "ten", "1*"]
)
def test_invalid_lengths_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a length: use tokens"):
        parse_lengths(text, CONVERSATION_PROMPT)
