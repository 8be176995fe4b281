"""The frequencies of rotary embeddings. Computed as transformers does, in float32 and in the same order."""

import math

import torch

from octavo.models.config import FactorScaling, LinearScaling, Llama3Scaling, RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2], on the CPU"""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case FactorScaling(factors):
            return frequencies / torch.tensor(factors)
        case Llama3Scaling():
            return _llama3(frequencies, rope.scaling)


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / frequencies
    rotations = scaling.original_max_positions / wavelengths  # over the context of the first training
    keep = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - keep) * frequencies / scaling.factor + keep * frequencies
    scaled = torch.where(keep <= 0, frequencies / scaling.factor, between)
    return torch.where(keep >= 1, frequencies, scaled)
