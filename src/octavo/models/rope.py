"""The frequencies of rotary embeddings: those of transformers but for the last bit.

transformers asks torch for a power, whose last bit is not the same everywhere. Here it is computed in decimal
and rounded once. All else is + - * / on float32, which every machine rounds alike.
"""

import math
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import torch

from octavo.models.config import FactorScaling, LinearScaling, Llama3Scaling, RopeConfig

Floats = npt.NDArray[np.float32]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2], on the CPU"""
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
    """By way of a double. A value that lies so near to the middle between two floats that this second
    rounding shows is not to be met with; it would round alike everywhere."""
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
    # Over the context of the first training.
    rotations = np.float32(scaling.original_max_positions) / wavelengths
    keep = (rotations - low) / span
    between = (np.float32(1) - keep) * frequencies / factor + keep * frequencies
    scaled = np.where(keep <= 0, frequencies / factor, between)
    return np.where(keep >= 1, frequencies, scaled)
