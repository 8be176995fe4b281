"""Rows of a quantised weight as codes and scales, and their conversion to weight blocks or to values.

Every scheme is read into this representation, so a value has one definition: (code - zero) * scale, where the
product is rounded to float32. `octavo.weight_format` defines the layouts of weight blocks.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.refusal import damaged
from octavo.weight_format import FORMATS

# UINT8 has zero points that no weight block format can store: such weights are always dequantised.
CodeKind = Literal["INT4", "INT8", "UINT8", "FP8"]

# Within these bounds, the products that kernels compute are normal floating-point numbers.
SMALLEST_SCALE = 2.0**-100
LARGEST_SCALE = 2.0**100

INT4_MIDDLE = 8  # zero point of symmetric 4-bit codes
FP8_NAN = 0x7F  # with either sign; float8_e4m3fn has no infinities


def _e4m3_values() -> npt.NDArray[np.float32]:
    """Return the value of each byte: sign, four bits of exponent (bias 7), three of mantissa."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    subnormal = np.ldexp(mantissa / 8, -6)
    magnitude = np.where(exponent == 0, subnormal, np.ldexp(1 + mantissa / 8, exponent - 7))
    magnitude[(code & FP8_NAN) == FP8_NAN] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


E4M3_VALUES = _e4m3_values()
E4M3_VALUES.setflags(write=False)


# The two codes of a byte as one 8-byte element (two float32), so that one fast lookup decodes both.
INT4_PAIRS = ((np.arange(256) & 15) + 1j * (np.arange(256) >> 4)).astype(np.complex64)
INT4_PAIRS.setflags(write=False)


@dataclass(frozen=True)
class Coding:
    """How the codes of a weight are converted to values. `group_size` columns share a scale and the last
    group may be shorter; if `group_of` is given, it contains the group of every column."""

    kind: CodeKind
    k: int
    group_size: int
    group_of: npt.NDArray[np.int64] | None = None

    @property
    def num_groups(self) -> int:
        return -(-self.k // self.group_size)

    def format(self) -> str | None:
        """Return the format that stores these codes unchanged, or None."""
        if self.kind == "UINT8" or self.group_of is not None:
            return None
        for block_k in (128, 32):
            if self.k % block_k == 0 and (self.group_size >= self.k or self.group_size % block_k == 0):
                return f"{self.kind}_{block_k}"
        return None

    def why_no_format(self) -> str:
        if self.kind == "UINT8":
            return "zero points need more than four bits"
        if self.group_of is not None:
            return "columns are ordered by their activations (g_idx)"
        if self.k % 32:
            return f"row length {self.k} is not a multiple of 32"
        return f"group size {self.group_size} is not a multiple of 32"


@dataclass(frozen=True)
class CodedRows:
    """Consecutive rows. `codes` has one byte per weight; for INT4, one byte per two weights with the even
    column in the low half. `scales` and `zeros` have one column per group. INT4 without `zeros` has the zero
    point 8 in all groups."""

    codes: npt.NDArray[Any]
    scales: npt.NDArray[np.float32]
    zeros: npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | None = None


def check(name: str, rows: CodedRows, coding: Coding) -> None:
    """Raise if the rows contain a scale or a code that no quantiser writes."""
    if not np.isfinite(rows.scales).all():
        raise damaged(f"{name} has a scale that is not finite")
    if coding.kind == "FP8" and bool(((rows.codes & FP8_NAN) == FP8_NAN).any()):
        raise damaged(f"{name} has weights that are NaN")


def scales_fit(scales: npt.NDArray[np.float32]) -> bool:
    """Return whether weight blocks may contain these scales."""
    size = np.abs(scales)
    return bool(((size == 0) | ((size >= SMALLEST_SCALE) & (size <= LARGEST_SCALE))).all())


def as_values(rows: CodedRows, coding: Coding) -> npt.NDArray[np.float32]:
    """Return the dequantised rows, float32 [rows, k]."""
    values = _code_values(rows.codes, coding)
    if coding.kind == "INT4" and rows.zeros is None:
        values -= INT4_MIDDLE
    with np.errstate(over="ignore", under="ignore"):
        if coding.group_of is None and coding.num_groups * coding.group_size == coding.k:
            grouped = values.reshape(len(values), coding.num_groups, coding.group_size)
            if rows.zeros is not None:
                grouped -= rows.zeros[:, :, None]
            grouped *= rows.scales[:, :, None]
            return values
        group_of = coding.group_of
        if group_of is None:
            group_of = np.arange(coding.k) // coding.group_size
        if rows.zeros is not None:
            values -= rows.zeros[:, group_of]
        values *= rows.scales[:, group_of]
    return values


def _code_values(codes: npt.NDArray[Any], coding: Coding) -> npt.NDArray[np.float32]:
    if coding.kind == "FP8":
        decoded: npt.NDArray[np.float32] = E4M3_VALUES.take(codes)
        return decoded
    if coding.kind != "INT4":
        return codes.astype(np.float32)
    values = INT4_PAIRS.take(codes).view(np.float32)
    return values if values.shape[1] == coding.k else values[:, : coding.k].copy()


def as_blocks(rows: CodedRows, coding: Coding) -> npt.NDArray[np.uint8]:
    """Return the rows as weight blocks of the format `coding.format()`: uint8 [rows, bytes per row]."""
    name = coding.format()
    assert name is not None
    layout = FORMATS[name]
    num_rows, num_blocks = len(rows.codes), coding.k // layout.block_k
    group_of_block = np.arange(num_blocks) * layout.block_k // coding.group_size
    blocks = np.empty((num_rows, num_blocks, layout.block_bytes), dtype=np.uint8)
    scales = np.ascontiguousarray(rows.scales[:, group_of_block], dtype="<f4")
    blocks[:, :, :4] = scales.view(np.uint8).reshape(num_rows, num_blocks, 4)
    head = 4
    if coding.kind == "INT4":
        blocks[:, :, 4] = INT4_MIDDLE if rows.zeros is None else rows.zeros[:, group_of_block]
        head = 5
    blocks[:, :, head:] = rows.codes.view(np.uint8).reshape(num_rows, num_blocks, -1)
    return blocks.reshape(num_rows, -1)
