"""Quantise weights while they are read: symmetric integers, as compressed-tensors defines them.

A scale is the largest magnitude in its group divided by half the range of codes. It is rounded to the type of
the weights, so that it can be stored in that type without loss. A code is weight / scale, rounded to nearest,
ties to even.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.coded_rows import (
    INT4_MIDDLE,
    LARGEST_SCALE,
    SMALLEST_SCALE,
    CodedRows,
    Coding,
    as_blocks,
    as_values,
)
from octavo.checkpoint.tensors import CHUNK_NUMPY_TYPES, RowChunk, TensorInfo, TensorStore
from octavo.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

SchemeName = Literal["int8", "int4"]

KEPT = ("embed_tokens", "lm_head")  # not quantised, as usual: small in large models, and sensitive
INT4_GROUPS = (128, 32)

# Replacements for a scale of zero. All codes are zero, so any number works; compressed-tensors uses these.
_EPSILONS = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}


def coding_for(scheme: SchemeName, k: int) -> Coding | None:
    """Return the coding for rows of `k` weights, or None if they cannot be split into groups.

    int8 has one scale per row; int4 has one per 128 columns, or per 32.
    """
    if scheme == "int8":
        return Coding("INT8", k, k) if k % 32 == 0 else None
    return next((Coding("INT4", k, size) for size in INT4_GROUPS if k % size == 0), None)


def scale_type(source_dtype: str) -> str:
    """Return the type of the scales: that of the weights, or float32 for float64 weights, because no reader
    expects float64 scales."""
    return "F32" if source_dtype == "F64" else source_dtype


def quantise(name: str, weights: npt.NDArray[np.float32], coding: Coding, scale_dtype: str) -> CodedRows:
    """Quantise `weights` [rows, k]."""
    low, high = (-8, 7) if coding.kind == "INT4" else (-128, 127)
    groups = weights.reshape(len(weights), coding.num_groups, coding.group_size)
    codes = np.abs(groups)
    largest = codes.max(axis=2)
    if not np.isfinite(largest).all():
        raise CheckpointError(f"{name} has weights that are not finite and cannot be quantised.")
    scales = round_to(largest / np.float32((high - low) / 2), scale_dtype)
    if float(scales.max()) > LARGEST_SCALE:
        raise CheckpointError(f"{name} has weights above 2^100, which cannot be quantised.")
    vanishing = scales < SMALLEST_SCALE
    scales[vanishing] = _EPSILONS[scale_dtype]
    np.divide(groups, scales[:, :, None], out=codes)
    codes[vanishing] = 0
    np.rint(codes, out=codes)
    np.clip(codes, low, high, out=codes)
    if coding.kind == "INT8":
        return CodedRows(codes.astype(np.int8).reshape(weights.shape), scales)
    codes += INT4_MIDDLE
    pairs = codes.astype(np.uint8).reshape(weights.shape).view("<u2")  # the even column in the low byte
    return CodedRows((pairs | (pairs >> 4)).astype(np.uint8), scales)


def round_to(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """Round to the nearest numbers of an element type. Return them as float32."""
    match dtype:
        case "BF16":
            bits = values.view(np.uint32)
            even = (bits >> 16) & 1
            return ((bits + 0x7FFF + even) & np.uint32(0xFFFF0000)).view(np.float32)
        case "F16":
            with np.errstate(over="ignore"):
                return values.astype(np.float16).astype(np.float32)
        case _:
            return values.copy()


def as_float32(chunk: RowChunk) -> npt.NDArray[np.float32]:
    if chunk.dtype == "BF16":
        return (chunk.values.astype(np.uint32) << 16).view(np.float32)
    return chunk.values.astype(np.float32)


@dataclass(frozen=True)
class QuantisingStore:
    """Another store with the matrices of its linear layers quantised and everything else unchanged."""

    source: TensorStore
    scheme: SchemeName

    def __post_init__(self) -> None:
        for name, info in self._infos.items():
            if info.source_dtype not in CHUNK_NUMPY_TYPES:
                raise ConfigError(
                    f"quantize {self.scheme}: the checkpoint is already quantised ({name} is "
                    f"{info.source_dtype}); omit the option, or use an unquantised checkpoint"
                )

    @cached_property
    def _infos(self) -> Mapping[str, TensorInfo]:
        return self.source.tensors

    @property
    def files(self) -> tuple[Path, ...]:
        return self.source.files

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        kept = Counter[int]()
        for name, info in self._infos.items():
            coding = self.coding(name)
            format_name = None if coding is None else coding.format()
            tensors[name] = info if format_name is None else replace(info, source_dtype=format_name)
            if format_name is None and _is_linear(info):
                kept[info.shape[1]] += 1
        for k, count in kept.items():
            logger.info("%d weights are not quantised: row length %d is not a multiple of 32", count, k)
        return tensors

    def coding(self, name: str) -> Coding | None:
        """Return how a tensor is quantised, or None if it is not."""
        info = self._infos[name]
        return coding_for(self.scheme, info.shape[1]) if _is_linear(info) else None

    def quantised(self, name: str, coding: Coding) -> Iterator[tuple[RowChunk, CodedRows]]:
        """Yield the rows of a weight, as stored in the source and as codes."""
        scale_dtype = scale_type(self._infos[name].source_dtype)
        for chunk in self.source.chunks(name):
            yield chunk, quantise(name, as_float32(chunk), coding, scale_dtype)

    def chunks(self, name: str) -> Iterator[RowChunk]:
        coding = self.coding(name)
        if coding is None:
            yield from self.source.chunks(name)
            return
        for chunk, rows in self.quantised(name, coding):
            yield RowChunk(chunk.start, as_values(rows, coding), "F32", chunk.source_nbytes)

    def blocks(self, name: str) -> Iterator[RowChunk]:
        coding = self.coding(name)
        format_name = None if coding is None else coding.format()
        if coding is None or format_name is None:
            raise ValueError(f"{name} is not stored in weight blocks")
        for chunk, rows in self.quantised(name, coding):
            yield RowChunk(chunk.start, as_blocks(rows, coding), format_name, chunk.source_nbytes)


def _is_linear(info: TensorInfo) -> bool:
    module, _, part = info.name.rpartition(".")
    return (
        part == "weight"
        and len(info.shape) == 2
        and min(info.shape) > 0
        and module.rpartition(".")[2] not in KEPT
    )
