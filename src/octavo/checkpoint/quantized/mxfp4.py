"""MXFP4: 32 numbers of four bits (e2m1) share a power of two. compressed-tensors stores codes and exponents
apart; GGUF has them in one block, and so have we."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.refusal import damaged
from octavo.checkpoint.quantized.weight import Parts
from octavo.checkpoint.tensors import row_spans

GROUP = 32
# Twice what each code means, as in GGUF: there is one zero.
DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
DOUBLED.setflags(write=False)
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

    def values(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start, stop in row_spans(self.shape):
            codes, exponents = self._read(start, stop)
            scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
            values = DOUBLED.take(codes).reshape(*exponents.shape, GROUP) * scales[:, :, None]
            yield start, np.ascontiguousarray(values.reshape(codes.shape)[:, : self.shape[1]])

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """An exponent, then 16 bytes: byte j has column j in its low half and column j + 16 in the high."""
        for start, stop in row_spans(self.shape):
            codes, exponents = self._read(start, stop)
            halves = codes.reshape(*exponents.shape, 2, GROUP // 2)
            blocks = np.empty((*exponents.shape, 1 + GROUP // 2), dtype=np.uint8)
            blocks[:, :, 0] = exponents
            blocks[:, :, 1:] = halves[:, :, 0] | (halves[:, :, 1] << 4)
            yield start, blocks.reshape(stop - start, -1)

    def _read(self, start: int, stop: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Codes [rows, columns], filled up to whole groups, and exponents [rows, groups]."""
        packed = self.parts.read("weight_packed", start, stop)
        exponents = self.parts.read("weight_scale", start, stop)
        if bool((exponents == NOT_A_NUMBER).any()):
            raise damaged(f"{self.name} has a scale that is not finite")
        codes = np.zeros((stop - start, exponents.shape[1] * GROUP), dtype=np.uint8)
        codes[:, 0 : self.shape[1] : 2] = packed & 15
        codes[:, 1 : self.shape[1] : 2] = packed >> 4
        return codes, exponents
