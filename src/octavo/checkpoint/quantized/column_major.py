"""GPTQ and AWQ: codes in int32 words as a matrix [in, out], scales and zero points as matrices [groups, out].

A row [out] of a weight is a column of these matrices, so a pass over a weight keeps all of its words in
memory: half a byte per weight.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.coded_rows import CodedRows, CodeKind, Coding
from octavo.checkpoint.quantized.refusal import unsupported
from octavo.checkpoint.quantized.weight import SCALE_TYPES, CodedWeight, Parts, QuantizedWeight, ReadRows
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.errors import CheckpointError

# Nibble j of AWQ word w is output 8w + AWQ_ORDER[j].
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
INT4_LARGEST = 15
INT8_MIDDLE = 128


def _modules_with(store: SafetensorsStore, part: str) -> Iterator[tuple[str, Parts]]:
    for name in store.entries:
        module, _, last = name.rpartition(".")
        if last == part:
            yield name, Parts(store, module)


def _group_size(stated: int, k: int) -> int:
    if stated == -1 or stated >= k:
        return k
    if stated <= 0:
        raise CheckpointError(f"quantization_config has the group_size {stated}; it must be positive, or -1.")
    return stated


def unpack_words(words: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Unpack [rows, words] to [rows, codes], the lowest bits of a word first."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    codes = np.empty((len(packed), 2 * packed.shape[1]), dtype=np.uint8)
    codes[:, 0::2] = packed & 15
    codes[:, 1::2] = packed >> 4
    return codes


# -- GPTQ ------------------------------------------------------------------------------------------------


class GptqConfig(msgspec.Struct, frozen=True):
    bits: int
    group_size: int
    checkpoint_format: str = "gptq"
    dynamic: dict[str, Any] | None = None


@dataclass(frozen=True)
class Gptq:
    """qweight [in / 8, out], packed along inputs; qzeros [groups, out / 8]; g_idx [in], each input's group.

    The first version stores each zero point minus one, the second stores it unchanged.
    """

    bits: Literal[4, 8]
    group_size: int
    zero_offset: int
    notes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Gptq":
        config = msgspec.convert(raw, GptqConfig)
        if config.bits not in (4, 8):
            raise unsupported(f"GPTQ with {config.bits} bits")
        if config.checkpoint_format not in ("", "gptq", "gptq_v2"):
            raise unsupported(f"the GPTQ checkpoint_format {config.checkpoint_format!r}")
        if any(not pattern.startswith("-:") for pattern in config.dynamic or {}):
            raise unsupported("GPTQ with settings that differ between layers (dynamic)")
        offset = 0 if config.checkpoint_format == "gptq_v2" else 1
        return cls(4 if config.bits == 4 else 8, config.group_size, offset)

    def weights(self, store: SafetensorsStore) -> Iterator[tuple[str, QuantizedWeight]]:
        for name, parts in _modules_with(store, "qweight"):
            yield name, self._weight(parts)

    def _weight(self, parts: Parts) -> QuantizedWeight:
        num_words, n = parts.entry("qweight", ("I32",), (None, None)).shape
        k = num_words * 32 // self.bits
        size = _group_size(self.group_size, k)
        num_groups = -(-k // size)
        parts.entry("scales", SCALE_TYPES, (num_groups, n))
        parts.entry("qzeros", ("I32",), (num_groups, -(-n * self.bits // 32)))
        group_of = parts.read_group_of("g_idx", k, size)
        kind = self._kind(parts, n)
        return CodedWeight(
            name=parts.weight_name,
            shape=(n, k),
            nbytes=parts.nbytes("qweight", "qzeros", "scales", "g_idx"),
            coding=Coding(kind, k, size, group_of),
            scales=parts.scales_to_check("scales"),
            open_rows=lambda: self._open(parts, n, kind),
        )

    def _kind(self, parts: Parts, n: int) -> CodeKind:
        zeros = self._zeros(parts, n)
        if self.bits == 4:
            return "INT4" if int(zeros.max()) <= INT4_LARGEST else "UINT8"
        return "INT8" if bool((zeros == INT8_MIDDLE).all()) else "UINT8"

    def _zeros(self, parts: Parts, n: int) -> npt.NDArray[np.uint16]:
        """Return the zero points [groups, n]. A stored 15 means 16 as in AutoGPTQ's kernels, without wrap."""
        stored = unpack_words(parts.read("qzeros"), self.bits)[:, :n]
        return stored.astype(np.uint16) + np.uint16(self.zero_offset)

    def _open(self, parts: Parts, n: int, kind: CodeKind) -> ReadRows:
        words = parts.read("qweight")
        scales, zeros = parts.read_scales("scales"), self._zeros(parts, n)

        def read(start: int, stop: int) -> CodedRows:
            # A word holds eight inputs, lowest first. After the transpose its bytes are pairs of neighbouring
            # inputs, as in INT4.
            codes = np.ascontiguousarray(words[:, start:stop].T).view(np.uint8)
            rows_scales = np.ascontiguousarray(scales[:, start:stop].T)
            if kind == "INT8":
                return CodedRows((codes ^ INT8_MIDDLE).view(np.int8), rows_scales)
            if kind == "UINT8" and self.bits == 4:
                codes = unpack_words(codes, 4)
            return CodedRows(codes, rows_scales, np.ascontiguousarray(zeros[:, start:stop].T))

        return read


# -- AWQ -------------------------------------------------------------------------------------------------


class AwqConfig(msgspec.Struct, frozen=True):
    bits: int
    group_size: int
    zero_point: bool = True
    version: str = "gemm"


@dataclass(frozen=True)
class Awq:
    """qweight [in, out / 8] and qzeros [groups, out / 8], packed along the outputs in AWQ_ORDER."""

    group_size: int
    zero_point: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Awq":
        config = msgspec.convert(raw, AwqConfig)
        if config.bits != 4:
            raise unsupported(f"AWQ with {config.bits} bits")
        if config.version.lower() != "gemm":
            raise unsupported(f"AWQ version {config.version!r}")
        return cls(config.group_size, config.zero_point)

    def weights(self, store: SafetensorsStore) -> Iterator[tuple[str, QuantizedWeight]]:
        for name, parts in _modules_with(store, "qweight"):
            yield name, self._weight(parts)

    def _weight(self, parts: Parts) -> QuantizedWeight:
        k, num_words = parts.entry("qweight", ("I32",), (None, None)).shape
        n = num_words * 8
        size = _group_size(self.group_size, k)
        num_groups = -(-k // size)
        parts.entry("scales", SCALE_TYPES, (num_groups, n))
        if self.zero_point:
            parts.entry("qzeros", ("I32",), (num_groups, num_words))
        return CodedWeight(
            name=parts.weight_name,
            shape=(n, k),
            nbytes=parts.nbytes("qweight", "qzeros", "scales"),
            coding=Coding("INT4", k, size),
            scales=parts.scales_to_check("scales"),
            open_rows=lambda: self._open(parts),
        )

    def _open(self, parts: Parts) -> ReadRows:
        words, scales = parts.read("qweight"), parts.read_scales("scales")
        zeros = _reorder(parts.read("qzeros")) if self.zero_point else None

        def read(start: int, stop: int) -> CodedRows:
            codes = _reorder(words[:, start // 8 : -(-stop // 8)]).T  # start is a multiple of eight
            if len(words) % 2:
                codes = np.pad(codes, ((0, 0), (0, 1)))
            return CodedRows(
                codes[:, 0::2] | (codes[:, 1::2] << 4),
                np.ascontiguousarray(scales[:, start:stop].T),
                None if zeros is None else np.ascontiguousarray(zeros[:, start:stop].T),
            )

        return read


def _reorder(words: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Unpack [rows, words] to [rows, outputs], in the order of the outputs."""
    nibbles = unpack_words(words, 4).reshape(len(words), -1, 8)
    ordered = np.empty_like(nibbles)
    ordered[:, :, AWQ_ORDER] = nibbles
    return ordered.reshape(len(words), -1)
