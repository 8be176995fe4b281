"""MXFP4: 32 four-bit numbers (e2m1) share a power of two. compressed-tensors stores codes and exponents in
separate tensors; GGUF, like Octavo, stores them together in one weight block."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.refusal import damaged
from octavo.checkpoint.quantized.weight import Parts
from octavo.checkpoint.tensors import row_spans

GROUP = 32
# Twice the value of each code, as in GGUF. Both zero codes are +0.
DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
DOUBLED.setflags(write=False)
NAN_EXPONENT = 255


@dataclass(frozen=True)
class Mxfp4Weight:
    """A weight in MXFP4. `weight_packed` has the even column in the low half of a byte; `weight_scale`
    contains exponents with a bias of 127."""

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

    def why_dequantised(self) -> str:
        return f"row length {self.shape[1]} is not a multiple of {GROUP}"

    def values(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start, stop in row_spans(self.shape):
            codes, exponents = self._read(start, stop)
            scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
            values = DOUBLED.take(codes).reshape(*exponents.shape, GROUP) * scales[:, :, None]
            yield start, np.ascontiguousarray(values.reshape(codes.shape)[:, : self.shape[1]])

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yield the first row and the rows of each chunk, as weight blocks.

        A weight block is an exponent and 16 bytes: byte j has column j in its low half and column j + 16 in
        its high half.
        """
        for start, stop in row_spans(self.shape):
            codes, exponents = self._read(start, stop)
            halves = codes.reshape(*exponents.shape, 2, GROUP // 2)
            blocks = np.empty((*exponents.shape, 1 + GROUP // 2), dtype=np.uint8)
            blocks[:, :, 0] = exponents
            blocks[:, :, 1:] = halves[:, :, 0] | (halves[:, :, 1] << 4)
            yield start, blocks.reshape(stop - start, -1)

    def _read(self, start: int, stop: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Return codes [rows, columns], padded to whole groups, and exponents [rows, groups]."""
        packed = self.parts.read("weight_packed", start, stop)
        exponents = self.parts.read("weight_scale", start, stop)
        if bool((exponents == NAN_EXPONENT).any()):
            raise damaged(f"{self.name} has a scale that is not finite")
        codes = np.zeros((stop - start, exponents.shape[1] * GROUP), dtype=np.uint8)
        codes[:, 0 : self.shape[1] : 2] = packed & 15
        codes[:, 1 : self.shape[1] : 2] = packed >> 4
        return codes, exponents
