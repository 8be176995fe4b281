"""Quantise weights while they are read: symmetric integers, as compressed-tensors defines them.

A scale is the largest weight of its group over half the range of codes, rounded to the weights' own type: so
whoever stores it in that type has the same scale. A code is weight over scale, to the nearest, ties to even.
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

KEPT = ("embed_tokens", "lm_head")  # the usual exceptions: small in large models, and sensitive
INT4_GROUPS = (128, 32)

# Of each type: what replaces a scale of zero. Any number would do, all codes are zero; this is the library's.
_EPSILONS = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}


def coding_for(scheme: SchemeName, k: int) -> Coding | None:
    """int8: a scale for each row; int4: one for each 128 columns, or 32. None where rows cannot be cut so."""
    if scheme == "int8":
        return Coding("INT8", k, k) if k % 32 == 0 else None
    return next((Coding("INT4", k, size) for size in INT4_GROUPS if k % size == 0), None)


def scale_type(source_dtype: str) -> str:
    """float64 has no scales of its own: nothing that reads them would expect that."""
    return "F32" if source_dtype == "F64" else source_dtype


def quantise(name: str, weights: npt.NDArray[np.float32], coding: Coding, scale_dtype: str) -> CodedRows:
    """`weights` [rows, k]"""
    low, high = (-8, 7) if coding.kind == "INT4" else (-128, 127)
    groups = weights.reshape(len(weights), coding.num_groups, coding.group_size)
    codes = np.abs(groups)
    largest = codes.max(axis=2)
    if not np.isfinite(largest).all():
        raise CheckpointError(f"{name} has weights that are not finite numbers; they cannot be quantised.")
    scales = round_to(largest / np.float32((high - low) / 2), scale_dtype)
    if float(scales.max()) > LARGEST_SCALE:
        raise CheckpointError(f"{name} has weights above 2^100; they cannot be quantised.")
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
    """The nearest numbers of an element type, as float32."""
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
    """The matrices of linear layers of another store, quantised; everything else as it is there."""

    source: TensorStore
    scheme: SchemeName

    def __post_init__(self) -> None:
        for name, info in self._infos.items():
            if info.source_dtype not in CHUNK_NUMPY_TYPES:
                raise ConfigError(
                    f"quantize {self.scheme}: the checkpoint is quantised already ({name} is "
                    f"{info.source_dtype}); leave the option out, or take a checkpoint that is not"
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
            form = None if coding is None else coding.format()
            tensors[name] = info if form is None else replace(info, source_dtype=form)
            if form is None and _is_linear(info):
                kept[info.shape[1]] += 1
        for k, count in kept.items():
            logger.info("%d weights are not quantised: rows of %d, no multiple of 32", count, k)
        return tensors

    def coding(self, name: str) -> Coding | None:
        """None for a tensor that stays as it is."""
        info = self._infos[name]
        return coding_for(self.scheme, info.shape[1]) if _is_linear(info) else None

    def quantised(self, name: str, coding: Coding) -> Iterator[tuple[RowChunk, CodedRows]]:
        """The rows of a weight, as they are in the source and as codes."""
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
        form = None if coding is None else coding.format()
        if coding is None or form is None:
            raise ValueError(f"{name} is not kept in blocks")
        for chunk, rows in self.quantised(name, coding):
            yield RowChunk(chunk.start, as_blocks(rows, coding), form, chunk.source_nbytes)


def _is_linear(info: TensorInfo) -> bool:
    module, _, part = info.name.rpartition(".")
    return (
        part == "weight"
        and len(info.shape) == 2
        and min(info.shape) > 0
        and module.rpartition(".")[2] not in KEPT
    )
