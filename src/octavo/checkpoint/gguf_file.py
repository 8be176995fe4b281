"""Read GGUF files, versions 2 and 3: metadata, the list of tensors, and rows as stored or dequantised.

Layout: "GGUF", u32 version, u64 tensor count, u64 metadata count, metadata (key, type, value)..., tensor
descriptions..., padding to the alignment, data. Every count, length and offset is checked against the rest of
the file and against a fixed limit before it is used for an allocation.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

from octavo.checkpoint.tensors import (
    CHUNK_NUMPY_TYPES,
    RowChunk,
    open_for_pread,
    read_exactly,
    row_spans,
)
from octavo.errors import CheckpointError

MAX_METADATA_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 15
MAX_NAME_BYTES = (1 << 16) - 1
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_ELEMENTS = 3 << 19  # in all arrays together; Gemma, with 262,144 tokens, has 786,432
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
WINDOW_BYTES = 1 << 20

# These codes are valid in both `struct` and numpy.
_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<B",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_unpack_length = struct.Struct("<Q").unpack_from
_SMALLEST_ENTRY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in the file. `shape` has the order of Hugging Face and torch: rows first."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int  # from the start of the file
    nbytes: int


@dataclass(frozen=True)
class StringArray:
    """Metadata strings, not decoded yet. Vocabularies are the bulk of a header and an engine does not need
    them, so reading the header only checks where each string begins and ends."""

    path: Path
    start: int  # offset in the file
    count: int
    encoded: bytes = field(repr=False)  # as in the file: for each string a u64 length and UTF-8

    def decode(self) -> list[str]:
        strings: list[str] = []
        encoded, at = self.encoded, 0
        try:
            for _ in range(self.count):
                end = at + 8 + _unpack_length(encoded, at)[0]
                strings.append(encoded[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError:
            raise _unusable(self.path, _not_utf8(self.start + at)) from None
        return strings


@dataclass(frozen=True)
class GgufFile:
    path: Path
    version: int
    entries: Mapping[str, Any]  # metadata: str, int, float, bool, lists of the last three, StringArray
    tensors: Mapping[str, GgufTensor]  # in the order of their data

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The entries with all strings decoded."""
        return {
            key: value.decode() if isinstance(value, StringArray) else value
            for key, value in self.entries.items()
        }

    def read_rows(self, tensor: GgufTensor, group: int = 1) -> Iterator[RowChunk]:
        """Yield all rows in chunks split at multiples of `group`. Quantised kinds are dequantised to F32."""
        numpy_type = CHUNK_NUMPY_TYPES.get(tensor.kind.name)
        if numpy_type is None:
            _check_readable(tensor)
        for start, stop, raw in self._read_spans(tensor, group):
            shape = (stop - start, *tensor.shape[1:])
            if numpy_type is not None:
                yield RowChunk(start, raw.view(numpy_type).reshape(shape), tensor.kind.name, len(raw))
            else:
                rows = raw.reshape(stop - start if len(shape) > 1 else 1, -1)
                yield RowChunk(start, _dequantised(rows, tensor.kind).reshape(shape), "F32", len(raw))

    def read_blocks(self, tensor: GgufTensor, group: int = 1) -> Iterator[RowChunk]:
        """Yield the rows of a matrix of a quantised kind, as stored in the file."""
        for start, stop, raw in self._read_spans(tensor, group):
            yield RowChunk(start, raw.reshape(stop - start, -1), tensor.kind.name, len(raw))

    def _read_spans(self, tensor: GgufTensor, group: int) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
        """Yield the first row, the end row and the bytes of each chunk."""
        spans = row_spans(tensor.shape, group)
        if len(tensor.shape) == 1 and tensor.kind.name not in CHUNK_NUMPY_TYPES:
            spans = iter([(0, tensor.shape[0])])  # weight blocks run along a row, and a vector is one row
        with open_for_pread(self.path) as descriptor:
            for start, stop in spans:
                begin = tensor.nbytes * start // tensor.shape[0]
                length = tensor.nbytes * stop // tensor.shape[0] - begin
                yield start, stop, read_exactly(descriptor, tensor.offset + begin, length, self.path)


def _dequantised(rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    # Corrupt scales may overflow to inf. That is the value in the file, not a reason to warn.
    with np.errstate(all="ignore"):
        values: npt.NDArray[np.float32] = dequantize(rows, kind)
    return values


def _check_readable(tensor: GgufTensor) -> None:
    """Raise if gguf cannot dequantise the type: integers, and types that llama.cpp uses only internally."""
    try:
        dequantize(np.zeros(GGML_QUANT_SIZES[tensor.kind][1], dtype=np.uint8), tensor.kind)
    except NotImplementedError as error:
        raise CheckpointError(
            f"{tensor.name} has the type {tensor.kind.name}, which cannot be read as weights. "
            "Use a GGUF with another quantisation, such as Q4_K_M or Q8_0."
        ) from error


def read_gguf(path: Path) -> GgufFile:
    """Read the header: the metadata and the location of each tensor."""
    with open_for_pread(path) as descriptor:
        cursor = _Cursor(descriptor, path)
        version = _read_version(cursor)
        num_tensors = cursor.count("tensors", _SMALLEST_TENSOR, MAX_TENSORS)
        num_entries = cursor.count("metadata entries", _SMALLEST_ENTRY, MAX_METADATA_ENTRIES)
        entries: dict[str, Any] = {}
        for _ in range(num_entries):
            key = cursor.string(MAX_NAME_BYTES)
            if key in entries:
                raise cursor.error(f"the metadata key {key!r} occurs twice")
            entries[key] = cursor.value(cursor.value_type())
        described = [_describe_tensor(cursor) for _ in range(num_tensors)]
        alignment = entries.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise cursor.error(
                f"general.alignment is {alignment!r}, not a power of two up to {MAX_ALIGNMENT}"
            )
        data_start = -(-cursor.position // alignment) * alignment
        tensors = _checked_layout(cursor, described, data_start, alignment)
    return GgufFile(path, version, entries, tensors)


def _read_version(cursor: "_Cursor") -> int:
    if cursor.size < 24 or cursor.take(4) != b"GGUF":
        raise CheckpointError(f"{cursor.path} is not a GGUF file: it does not start with the letters GGUF.")
    version = int.from_bytes(cursor.take(4), "little")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0:
        raise cursor.error("it is a big-endian file; convert the model again for a little-endian machine")
    raise cursor.error(f"it has version {version}; only 2 and 3 are supported. Convert the model again")


def _describe_tensor(cursor: "_Cursor") -> GgufTensor:
    """Read one tensor description. Its offset is still relative to the start of the data."""
    name = cursor.string(MAX_NAME_BYTES)
    num_dimensions = cursor.scalar(GGUFValueType.UINT32)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{name!r} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are supported")
    shape = tuple(reversed([cursor.scalar(GGUFValueType.UINT64) for _ in range(num_dimensions)]))
    code = cursor.scalar(GGUFValueType.UINT32)
    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        raise cursor.error(
            f"{name!r} has the unknown type {code}; update the `gguf` package (pip install -U gguf)"
        ) from None
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape or shape[-1] % block_elements:
        raise cursor.error(
            f"{name!r} of shape {shape} cannot be split into {kind.name} blocks of {block_elements}"
        )
    nbytes = prod(shape) // block_elements * block_bytes
    return GgufTensor(name, shape, kind, cursor.scalar(GGUFValueType.UINT64), nbytes)


def _checked_layout(
    cursor: "_Cursor", described: list[GgufTensor], data_start: int, alignment: int
) -> dict[str, GgufTensor]:
    """Check that every tensor is inside the file and aligned, and that no tensors overlap."""
    tensors: dict[str, GgufTensor] = {}
    position = data_start
    for tensor in sorted(described, key=lambda tensor: tensor.offset):
        begin = data_start + tensor.offset
        if tensor.name in tensors:
            raise cursor.error(f"the tensor {tensor.name!r} occurs twice")
        if tensor.offset % alignment or begin < position:
            raise cursor.error(f"{tensor.name!r} starts at byte {begin}, unaligned or inside another tensor")
        position = begin + tensor.nbytes
        if position > cursor.size:
            raise cursor.error(
                f"{tensor.name!r} ends at byte {position} of {cursor.size}. Was the download interrupted?"
            )
        tensors[tensor.name] = GgufTensor(tensor.name, tensor.shape, tensor.kind, begin, tensor.nbytes)
    return tensors


class _Cursor:
    """Reads the header sequentially through a window of about a megabyte, and never past the end."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self.position = 0
        self._descriptor = descriptor
        self._window = b""
        self._window_start = 0
        self._elements_left = MAX_ARRAY_ELEMENTS

    def error(self, reason: str) -> CheckpointError:
        return _unusable(self.path, reason)

    def take(self, length: int) -> bytes:
        """Return the next `length` bytes. The caller has bounded `length` by a constant; this method checks
        it against the size of the file."""
        if length > self.size - self.position:
            raise self.error(
                f"the field at byte {self.position} has {length} bytes, but the file ends at byte {self.size}"
            )
        begin = self.position - self._window_start
        if begin + length > len(self._window):
            window_bytes = min(max(length, WINDOW_BYTES), self.size - self.position)
            self._window = read_exactly(self._descriptor, self.position, window_bytes, self.path).tobytes()
            self._window_start, begin = self.position, 0
        self.position += length
        return self._window[begin : begin + length]

    def scalar(self, kind: GGUFValueType) -> Any:
        letter = _SCALARS[kind]
        value = struct.unpack(letter, self.take(struct.calcsize(letter)))[0]
        return bool(value) if kind == GGUFValueType.BOOL else value

    def count(self, what: str, smallest: int, limit: int) -> int:
        count: int = self.scalar(GGUFValueType.UINT64)
        if count > limit or count * smallest > self.size - self.position:
            raise self.error(
                f"it declares {count} {what} in {self.size - self.position} bytes; the limit is {limit}"
            )
        return count

    def value_type(self) -> GGUFValueType:
        code = self.scalar(GGUFValueType.UINT32)
        try:
            return GGUFValueType(code)
        except ValueError:
            raise self.error(f"unknown metadata type {code} before byte {self.position}") from None

    def string(self, limit: int) -> str:
        start = self.position
        encoded = self._encoded_string(limit)
        try:
            return encoded[8:].decode()
        except UnicodeDecodeError:
            raise self.error(_not_utf8(start)) from None

    def _encoded_string(self, limit: int) -> bytes:
        """Return the bytes of the next string, preceded by its length."""
        encoded_length = self.take(8)
        length = _unpack_length(encoded_length)[0]
        if length > limit:
            raise self.error(
                f"the string before byte {self.position} has {length} bytes; the limit is {limit}"
            )
        return encoded_length + self.take(length)

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string(MAX_STRING_BYTES)
        if kind != GGUFValueType.ARRAY:
            return self.scalar(kind)
        element = self.value_type()
        if element == GGUFValueType.ARRAY:
            raise self.error("it contains nested arrays, which no supported model uses")
        smallest = 8 if element == GGUFValueType.STRING else struct.calcsize(_SCALARS[element])
        count = self.count("array elements", smallest, self._elements_left)
        self._elements_left -= count
        if element == GGUFValueType.STRING:
            return self._strings(count)
        values = np.frombuffer(self.take(count * smallest), _SCALARS[element])
        return (values.astype(bool) if element == GGUFValueType.BOOL else values).tolist()

    def _strings(self, count: int) -> StringArray:
        """Skip strings that are complete in the window; read a string that crosses its end separately."""
        start, left = self.position, count
        pieces: list[bytes] = []
        while left:
            window, begin = self._window, self.position - self._window_start
            at, last = begin, len(window) - 8
            while left and at <= last:
                end = at + 8 + _unpack_length(window, at)[0]
                if end > len(window):
                    break
                at = end
                left -= 1
            pieces.append(window[begin:at])
            self.position = self._window_start + at
            if left:
                pieces.append(self._encoded_string(MAX_STRING_BYTES))  # this advances the window
                left -= 1
        return StringArray(self.path, start, count, b"".join(pieces))


def _unusable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a usable GGUF file: {reason}.")


def _not_utf8(position: int) -> str:
    return f"the string at byte {position} is not UTF-8"
