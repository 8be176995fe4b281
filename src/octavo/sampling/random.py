"""Counter-based noise: a pure function of (seed, choice, position, token id).

There is no stream and no state, so the noise of a token does not depend on the rest of the batch or on
earlier computations, and is the same after a preemption or a crash. Each token's noise is independent of the
other tokens, so a caller may evaluate only the tokens that are still candidates.

The bits are those of splitmix64 (Steele, Lea, Flood 2014): a counter that is incremented by the golden ratio,
followed by a finaliser that flips about half of the output bits for any flipped input bit.
"""

import torch

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
START = 0x243F6A8885A308D3  # fractional part of pi; with 0, seed 0 would be a fixed point of the finaliser


def noise_key(seed: int, choice: int, position: int) -> int:
    """Return the 64-bit key of one drawn token. Seeds that are equal modulo 2**64 are the same seed (-1 and
    2**64 - 1)."""
    key = START
    for part in (seed, choice, position):
        key = _mix_int((key + part * GOLDEN) & MASK64)
    return key


def token_bits(key: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return 64 random bits for each token id (int64), as int64 on the same device."""
    return _mix_tensor(token_ids * _signed(GOLDEN) + _signed(key))


def uniform(bits: torch.Tensor) -> torch.Tensor:
    """Return float64 strictly between 0 and 1.

    It uses 52 bits, not 53: the largest value with 53 bits, 2**53 - 0.5, rounds up to 2**53 in float64, and
    the result would be 1.
    """
    return (_shift_right(bits, 12).to(torch.float64) + 0.5) * 2.0**-52


def gumbel(key: int, token_ids: torch.Tensor) -> torch.Tensor:
    """Return standard Gumbel noise for each token id: float64, always finite (about -3.6 to 36.8)."""
    return -torch.log(-torch.log(uniform(token_bits(key, token_ids))))


def _mix_int(value: int) -> int:
    value = ((value ^ (value >> 30)) * MULTIPLIER_1) & MASK64
    value = ((value ^ (value >> 27)) * MULTIPLIER_2) & MASK64
    return value ^ (value >> 31)


def _mix_tensor(value: torch.Tensor) -> torch.Tensor:
    # int64 multiplication wraps, which is multiplication modulo 2**64 on the same bits.
    value = (value ^ _shift_right(value, 30)) * _signed(MULTIPLIER_1)
    value = (value ^ _shift_right(value, 27)) * _signed(MULTIPLIER_2)
    return value ^ _shift_right(value, 31)


def _shift_right(value: torch.Tensor, count: int) -> torch.Tensor:
    """Shift logically: `>>` on int64 copies the sign bit, and the mask clears the copies."""
    return (value >> count) & (MASK64 >> count)


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value
