"""Weights whose codes are stored row by row, as in compressed-tensors and FP8 checkpoints."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.coded_rows import CodedRows, CodeKind, Coding
from octavo.checkpoint.quantized.weight import CodedWeight, Parts, ReadRows

SIGN_BIT = 0x80  # XOR converts between int8 and the same number plus 128


@dataclass(frozen=True)
class ScaleGrid:
    """`rows` x `columns` weights share a scale. None: all rows or all columns."""

    rows: int | None
    columns: int | None

    def shape(self, n: int, k: int) -> tuple[int, int]:
        return _count(n, self.rows), _count(k, self.columns)

    def fits(self, stored: tuple[int, ...], n: int, k: int) -> bool:
        """Return whether scales of the shape `stored` fit a weight [n, k].

        One scale for the whole tensor is stored as [], [1] or [1, 1], one per row as [n] or [n, 1].
        """
        shape = self.shape(n, k)
        if shape == (1, 1):
            return stored in ((), (1,), (1, 1))
        return stored == shape or (shape[1] == 1 and stored == shape[:1])


def _count(size: int, step: int | None) -> int:
    return 1 if step is None else -(-size // step)


@dataclass(frozen=True)
class RowMajor:
    """A weight whose codes are stored row by row.

    `packed_bits`: codes are packed into int32 words, lowest bits first, with half their range added; None:
    one code per element. `zeros`: the part with the zero points, of the same kind, packed down the columns.
    """

    parts: Parts
    kind: CodeKind
    codes: str
    packed_bits: int | None
    scales: str
    grid: ScaleGrid
    zeros: str | None
    shape: tuple[int, int]

    def weight(self) -> CodedWeight:
        k = self.shape[1]
        group_size = min(self.grid.columns or k, k)
        group_of = self.parts.read_group_of("weight_g_idx", k, group_size)
        return CodedWeight(
            name=self.parts.weight_name,
            shape=self.shape,
            nbytes=self.parts.nbytes(*filter(None, (self.codes, self.scales, self.zeros))),
            coding=Coding(self.kind, k, group_size, group_of),
            scales=self.parts.scales_to_check(self.scales),
            open_rows=self._open,
        )

    def _open(self) -> ReadRows:
        return self._read

    def _read(self, start: int, stop: int) -> CodedRows:
        zeros = None if self.zeros is None else self._read_zeros(self.zeros, start, stop)
        return CodedRows(self._read_codes(start, stop), self._read_scales(start, stop), zeros)

    def _read_codes(self, start: int, stop: int) -> npt.NDArray[Any]:
        raw = self.parts.read(self.codes, start, stop)
        if self.packed_bits is None:
            return (raw.view(np.uint8) ^ SIGN_BIT) if self.kind == "UINT8" else raw
        packed = raw.view(np.uint8)  # bytes of little-endian words are in column order
        if self.packed_bits == 4:
            return packed[:, : -(-self.shape[1] // 2)]
        codes = np.ascontiguousarray(packed[:, : self.shape[1]])
        return codes if self.kind == "UINT8" else (codes ^ SIGN_BIT).view(np.int8)

    def _read_scales(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        n, k = self.shape
        num_columns = self.grid.shape(n, k)[1]
        step = n if self.grid.rows is None else self.grid.rows
        first, last = start // step, (stop - 1) // step
        scales = self.parts.read_scales(self.scales, first, last + 1).reshape(-1, num_columns)
        return scales[np.arange(start, stop) // step - first]

    def _read_zeros(self, part: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the zero points. Codes have the same offset, so the difference is correct."""
        if self.packed_bits is None or self.parts.entry(part, ("I32", "I8")).dtype == "I8":
            middle = 8 if self.kind == "INT4" else SIGN_BIT
            zeros = self.parts.read(part, start, stop).reshape(stop - start, -1)
            return (zeros.astype(np.int16) + middle).astype(np.uint8)
        per_word = 32 // self.packed_bits
        words = self.parts.read(part, start // per_word, -(-stop // per_word)).view(np.uint32)
        shifts = np.arange(0, 32, self.packed_bits, dtype=np.uint32)
        unpacked = (words[:, None, :] >> shifts[None, :, None]) & np.uint32((1 << self.packed_bits) - 1)
        # `start` is a multiple of READ_ROWS, so it is the first row of a word.
        return unpacked.reshape(-1, words.shape[1])[: stop - start].astype(np.uint8)
