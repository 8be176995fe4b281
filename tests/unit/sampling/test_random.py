"""Noise is a fixed function of four numbers and looks random in each of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.random import gumbel, noise_key, token_bits, uniform

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def reference_mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def reference_bits(seed: int, choice: int, position: int, token_id: int) -> int:
    key = 0x243F6A8885A308D3
    for part in (seed, choice, position):
        key = reference_mix((key + (part % 2**64) * GOLDEN) & MASK)
    return reference_mix((key + token_id * GOLDEN) & MASK)


def chi_square_p(observed: torch.Tensor) -> float:
    """Return the p-value of a table of counts, where all expectations are equal."""
    expected = observed.sum() / observed.numel()
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = torch.tensor((observed.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))


def unsigned(bits: torch.Tensor) -> list[int]:
    return [value & MASK for value in bits.tolist()]


def test_bits_are_splitmix64_as_published() -> None:
    # The first outputs of splitmix64 from state 1234567, as other implementations give them.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert unsigned(token_bits(1234567, torch.arange(1, 6))) == published


def test_bits_never_change_between_versions() -> None:
    # A recorded request must be reproducible after an upgrade, so these numbers must not change.
    key = noise_key(2**63 + 5, 1, 131071)
    assert key == 0xCBE259FBA2153867
    assert unsigned(token_bits(key, torch.tensor([0, 1, 151935]))) == [
        0x339BE5770940E9B6,
        0x30365B8453613FD8,
        0x396457EF21BCD0D5,
    ]


@settings(deadline=None)
@given(
    seed=st.integers(-(2**64), 2**65),
    choice=st.integers(0, 128),
    position=st.integers(0, 2**20),
    token_ids=st.lists(st.integers(0, 2**20), min_size=1, max_size=20),
)
def test_bits_equal_the_big_integer_reference(
    seed: int, choice: int, position: int, token_ids: list[int]
) -> None:
    bits = token_bits(noise_key(seed, choice, position), torch.tensor(token_ids))
    assert unsigned(bits) == [reference_bits(seed, choice, position, token) for token in token_ids]


def test_seeds_are_taken_modulo_2_to_the_64() -> None:
    assert noise_key(-1, 0, 5) == noise_key(2**64 - 1, 0, 5)
    assert noise_key(2**63, 0, 5) == noise_key(-(2**63), 0, 5)
    assert noise_key(2**63, 0, 5) != noise_key(0, 0, 5)


def test_uniform_and_gumbel_stay_in_range_at_extreme_bits() -> None:
    low, high = uniform(torch.tensor([0, -1])).tolist()  # all bits clear, all bits set
    assert (low, high) == (2.0**-53, 1 - 2.0**-53)
    assert math.isfinite(-math.log(-math.log(low)))
    assert math.isfinite(-math.log(-math.log(high)))


def test_noise_of_a_token_does_not_depend_on_what_else_is_evaluated() -> None:
    key = noise_key(7, 0, 40)
    everything = gumbel(key, torch.arange(50_021))
    some = torch.randperm(50_021, generator=torch.Generator().manual_seed(1))[:777]
    assert torch.equal(gumbel(key, some), everything[some])
    alone = torch.stack([gumbel(key, some[i : i + 1])[0] for i in range(50)])
    assert torch.equal(alone, everything[some[:50]])


def test_uniform_is_uniform() -> None:
    for key in (noise_key(0, 0, 0), noise_key(1, 0, 1), noise_key(-3, 4, 9000)):
        values = uniform(token_bits(key, torch.arange(100_000)))
        assert chi_square_p(torch.histc(values, 256, 0.0, 1.0)) > 1e-4


def test_gumbel_has_the_gumbel_distribution() -> None:
    values = gumbel(noise_key(11, 0, 3), torch.arange(100_000))
    # exp(-exp(-g)) is the distribution function, which maps the values back to uniform ones.
    assert chi_square_p(torch.histc(torch.exp(-torch.exp(-values)), 100, 0.0, 1.0)) > 1e-4
    assert float(values.mean()) == pytest.approx(0.5772, abs=0.02)


@pytest.mark.parametrize("step", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, -1), (1, -1, 0), (2**32, 0, 0)])
def test_neighbours_are_independent(step: tuple[int, int, int]) -> None:
    """Bin a token's noise jointly for a key and its neighbour, in 16 x 16 cells."""
    ids = torch.arange(320)
    table = torch.zeros(256, dtype=torch.float64)
    for base in range(200):
        here = (base, 1 + base % 7, 1 + base)
        there = tuple(value + delta for value, delta in zip(here, step, strict=True))
        u = uniform(token_bits(noise_key(*here), ids))
        v = uniform(token_bits(noise_key(*there), ids))
        table += torch.bincount((u * 16).long() * 16 + (v * 16).long(), minlength=256)
    assert chi_square_p(table) > 1e-4


def test_one_token_is_uniform_over_positions_and_seeds() -> None:
    token = torch.tensor([198])
    over_positions = torch.cat(
        [uniform(token_bits(noise_key(5, 0, position), token)) for position in range(2_000)]
    )
    over_seeds = torch.cat([uniform(token_bits(noise_key(seed, 0, 5), token)) for seed in range(2_000)])
    assert chi_square_p(torch.histc(over_positions, 32, 0.0, 1.0)) > 1e-4
    assert chi_square_p(torch.histc(over_seeds, 32, 0.0, 1.0)) > 1e-4
