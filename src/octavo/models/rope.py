"""The frequencies of rotary embeddings. They equal those of transformers except for the last bit.

transformers computes a power with torch, whose last bit differs between machines. Here the power is computed
in decimal and rounded once. All other operations are + - * / on float32, which round the same on every
machine.
"""

import math
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import torch

from octavo.models.config import FactorScaling, LinearScaling, Llama3Scaling, RopeConfig

Floats = npt.NDArray[np.float32]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return float32 [head_dim / 2], on the CPU."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    context = Context(prec=40)
    powers = [context.power(Decimal(rope.theta), Decimal(float(exponent))) for exponent in exponents]
    frequencies = np.float32(1.0) / np.array([_nearest(power) for power in powers], dtype=np.float32)
    return torch.from_numpy(_scaled(frequencies, rope))


def _scaled(frequencies: Floats, rope: RopeConfig) -> Floats:
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / np.float32(factor)
        case FactorScaling(factors):
            divisors: Floats = np.array(factors, dtype=np.float32)
            return frequencies / divisors
        case Llama3Scaling():
            return _llama3(frequencies, rope.scaling)


def _nearest(value: Decimal) -> np.float32:
    """Round to float32 by way of a double. Double rounding could only matter for a value extremely close to
    the middle between two floats, and even then the result would be the same on every machine."""
    return np.float32(float(value))


def _llama3(frequencies: Floats, scaling: Llama3Scaling) -> Floats:
    factor, low, span = (
        np.float32(value)
        for value in (
            scaling.factor,
            scaling.low_freq_factor,
            scaling.high_freq_factor - scaling.low_freq_factor,
        )
    )
    wavelengths = np.float32(2 * math.pi) / frequencies
    # Number of rotations over the original training context.
    rotations = np.float32(scaling.original_max_positions) / wavelengths
    keep = (rotations - low) / span
    between = (np.float32(1) - keep) * frequencies / factor + keep * frequencies
    scaled = np.where(keep <= 0, frequencies / factor, between)
    return np.where(keep >= 1, frequencies, scaled)
