"""MXFP4: 32 numbers of four bits (e2m1) share a power of two. compressed-tensors stores codes and exponents
apart; GGUF has them in one block, and so have we."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from octavo.checkpoint.quantized.refusal import damaged
from octavo.checkpoint.quantized.weight import Parts
from octavo.checkpoint.tensors import row_spans

GROUP = 32
NOT_A_NUMBER = 255  # as an exponent


@dataclass(frozen=True)
class Mxfp4Weight:
    """`weight_packed` has the even column in the low half of a byte; `weight_scale`, exponents, bias 127."""

    parts: Parts
    shape: tuple[int, int]

    @property
    def name(self) -> str:
        return self.parts.weight_name

    @property
    def nbytes(self) -> int:
        return self.parts.nbytes("weight_packed", "weight_scale")

    def format(self) -> str | None:
        return None if self.shape[1] % GROUP else "MXFP4"

    def why_widened(self) -> str:
        return f"rows of {self.shape[1]}, no multiple of {GROUP}"

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        for start, stop in row_spans(self.shape):
            yield start, self._blocks(start, stop)

    def values(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start, stop in row_spans(self.shape):
            values = dequantize(self._blocks(start, stop), GGMLQuantizationType.MXFP4)
            yield start, np.ascontiguousarray(values[:, : self.shape[1]])

    def _blocks(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """An exponent, then 16 bytes: byte j has column j in its low half and column j + 16 in the high."""
        codes = self.parts.read("weight_packed", start, stop)
        exponents = self.parts.read("weight_scale", start, stop)
        if bool((exponents == NOT_A_NUMBER).any()):
            raise damaged(f"{self.name} has a scale that is not finite")
        num_rows, num_groups = exponents.shape
        spread = np.zeros((num_rows, num_groups * GROUP), dtype=np.uint8)
        spread[:, 0 : self.shape[1] : 2] = codes & 15
        spread[:, 1 : self.shape[1] : 2] = codes >> 4
        halves = spread.reshape(num_rows, num_groups, 2, GROUP // 2)
        blocks = np.empty((num_rows, num_groups, 1 + GROUP // 2), dtype=np.uint8)
        blocks[:, :, 0] = exponents
        blocks[:, :, 1:] = halves[:, :, 0] | (halves[:, :, 1] << 4)
        return blocks.reshape(num_rows, -1)
