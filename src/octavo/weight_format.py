"""Formats of quantised weights. Each row is a sequence of weight blocks with a fixed number of bytes.

Checkpoints, models, operations and kernels identify a format by its name. GGUF formats have GGUF's names and
layouts. The others are defined here, for checkpoints that keep codes and scales in separate tensors:

    INT4_32, INT4_128   float32 scale, uint8 zero, 4-bit codes (the even k in the low half of a byte)
    INT8_32, INT8_128   float32 scale, int8 codes
    FP8_32, FP8_128     float32 scale, float8_e4m3fn codes
"""

from collections.abc import Mapping
from dataclasses import dataclass


class BadBlocks(ValueError):
    """Damaged weight blocks: a scale or a weight in them is not finite, which no quantiser writes."""


@dataclass(frozen=True)
class WeightFormat:
    name: str
    block_k: int  # weights per weight block
    block_bytes: int

    def row_bytes(self, k: int) -> int:
        """Return the size of a row of `k` weights. `k` must be a multiple of `block_k`."""
        if k % self.block_k:
            raise ValueError(
                f"a row of {k} weights cannot be split into {self.name} blocks of {self.block_k}"
            )
        return k // self.block_k * self.block_bytes


FORMATS: Mapping[str, WeightFormat] = {
    name: WeightFormat(name, block_k, block_bytes)
    for name, block_k, block_bytes in (
        ("Q4_K", 256, 144),
        ("Q5_K", 256, 176),
        ("Q6_K", 256, 210),
        ("Q8_0", 32, 34),
        ("Q4_0", 32, 18),
        ("Q4_1", 32, 20),
        ("Q5_0", 32, 22),
        ("Q5_1", 32, 24),
        ("Q2_K", 256, 84),
        ("Q3_K", 256, 110),
        ("IQ4_NL", 32, 18),
        ("IQ4_XS", 256, 136),
        ("MXFP4", 32, 17),
        ("INT4_32", 32, 21),
        ("INT4_128", 128, 69),
        ("INT8_32", 32, 36),
        ("INT8_128", 128, 132),
        ("FP8_32", 32, 36),
        ("FP8_128", 128, 132),
    )
}
