"""Read safetensors files, single or sharded. A file is 8 bytes of header length, a JSON header, and the data.

Every number in the header is checked against the file before it is used for an allocation.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.checkpoint.tensors import (
    CHUNK_NUMPY_TYPES,
    RowChunk,
    TensorInfo,
    open_for_pread,
    read_exactly,
    row_spans,
)
from octavo.errors import CheckpointError
from octavo.json_file import read_json_object

INDEX_NAME = "model.safetensors.index.json"
# About 60,000 tensors in one file. With a larger limit, a hostile header would take long to reject.
MAX_HEADER_BYTES = 6 << 20
MAX_DIMENSIONS = 8

DTYPE_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

# The types that `read` returns. Types that numpy lacks are returned as their bit patterns.
_NUMPY_TYPES: Mapping[str, Any] = {
    **CHUNK_NUMPY_TYPES,
    **dict.fromkeys(("U8", "F8_E4M3", "F8_E8M0"), np.uint8),
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
}

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _HeaderEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True)
class SafetensorsTensor:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    nbytes: int


@dataclass(frozen=True)
class SafetensorsStore:
    """The tensors of one or many safetensors files."""

    entries: Mapping[str, SafetensorsTensor]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(name, entry.shape, entry.dtype, entry.nbytes)
            for name, entry in self.entries.items()
        }

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted({entry.path for entry in self.entries.values()}))

    def chunks(self, name: str) -> Iterator[RowChunk]:
        entry = self.entries[name]
        if entry.dtype not in CHUNK_NUMPY_TYPES:
            raise CheckpointError(
                f"{name} in {entry.path.name} has element type {entry.dtype}. Without a quantization_config "
                f"in config.json, weights must be one of {', '.join(CHUNK_NUMPY_TYPES)}."
            )
        with open_for_pread(entry.path) as descriptor:
            for start, stop in row_spans(entry.shape):
                values = self._read_rows(descriptor, entry, start, stop)
                yield RowChunk(start, values, entry.dtype, values.nbytes)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return rows `start` to `stop` (default: all) of a tensor of any type that this package decodes."""
        entry = self.entries[name]
        if entry.dtype not in _NUMPY_TYPES:
            raise CheckpointError(
                f"{name} in {entry.path.name} has the unexpected element type {entry.dtype}."
            )
        with open_for_pread(entry.path) as descriptor:
            rows = entry.shape[0] if entry.shape else 1
            return self._read_rows(descriptor, entry, start, rows if stop is None else min(stop, rows))

    def _read_rows(
        self, descriptor: int, entry: SafetensorsTensor, start: int, stop: int
    ) -> npt.NDArray[Any]:
        row_bytes = entry.nbytes // (entry.shape[0] or 1) if entry.shape else entry.nbytes
        length = (stop - start) * row_bytes
        raw = read_exactly(descriptor, entry.offset + start * row_bytes, length, entry.path)
        rows: npt.NDArray[Any] = raw.view(_NUMPY_TYPES[entry.dtype])
        return rows.reshape(stop - start, *entry.shape[1:])

    def blocks(self, name: str) -> Iterator[RowChunk]:
        raise ValueError(f"{name} is not stored in weight blocks")


def open_safetensors(directory: Path) -> SafetensorsStore:
    """Open the weights of a Hugging Face directory: shards with an index, or one file."""
    if (directory / INDEX_NAME).is_file():
        return _open_shards(directory)
    files = sorted(directory.glob("*.safetensors"))
    named = [path for path in files if path.name == "model.safetensors"]
    if not named and len(files) > 1:
        raise CheckpointError(
            f"{directory} has {len(files)} safetensors files but no {INDEX_NAME} that lists their tensors. "
            "Download the index too, or keep only one file."
        )
    if not files:
        raise CheckpointError(f"{directory} has no safetensors file.")
    return SafetensorsStore(read_header((named or files)[0]))


def _open_shards(directory: Path) -> SafetensorsStore:
    index = read_json_object(directory / INDEX_NAME)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{directory / INDEX_NAME} has no weight_map from tensor names to file names.")
    entries: dict[str, SafetensorsTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{INDEX_NAME} names the shard {shard!r}; shards must be .safetensors files beside the index."
            )
        if not (directory / shard).is_file():
            raise CheckpointError(f"{directory} lacks the shard {shard}. Download the checkpoint again.")
        header = read_header(directory / shard)
        entries |= {name: entry for name, entry in header.items() if weight_map.get(name) == shard}
    absent = sorted(set(weight_map) - set(entries))
    if absent:
        raise CheckpointError(f"{INDEX_NAME} lists tensors that its shards do not contain: {some(absent)}.")
    return SafetensorsStore(entries)


def read_header(path: Path) -> dict[str, SafetensorsTensor]:
    """Return the tensors of one file, in the order of their data."""
    with open_for_pread(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size < 8:
            raise CheckpointError(f"{path} has {size} bytes: too short for a safetensors file.")
        length = int.from_bytes(read_exactly(descriptor, 0, 8, path).tobytes(), "little")
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{path} is not a safetensors file, or is truncated: the file has {size} bytes, its header "
                f"claims {length}; the limit for a header is {MAX_HEADER_BYTES}."
            )
        raw = read_exactly(descriptor, 8, length, path).tobytes()
    try:
        header = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        parsed = {name: msgspec.json.decode(entry, type=_HeaderEntry) for name, entry in header.items()}
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CheckpointError(f"{path} has a malformed safetensors header: {error}.") from error
    return _checked_layout(path, parsed, data_start=8 + length, data_bytes=size - 8 - length)


def _checked_layout(
    path: Path, parsed: dict[str, _HeaderEntry], *, data_start: int, data_bytes: int
) -> dict[str, SafetensorsTensor]:
    """Check that each tensor starts where the previous one ends. The format allows no gaps or overlaps."""
    tensors: dict[str, SafetensorsTensor] = {}
    position = 0
    for name, entry in sorted(parsed.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        bits = DTYPE_BITS.get(entry.dtype)
        if bits is None:
            raise CheckpointError(f"{path}: {name} has the unknown element type {entry.dtype!r}.")
        if (end - begin) * 8 != prod(entry.shape) * bits:
            raise CheckpointError(
                f"{path}: {name}, {entry.dtype} of shape {entry.shape}, does not fill bytes {begin} to {end}."
            )
        if begin != position:
            raise CheckpointError(f"{path}: {name} starts at byte {begin} of the data instead of {position}.")
        position = end
        tensors[name] = SafetensorsTensor(
            path, entry.dtype, tuple(entry.shape), data_start + begin, end - begin
        )
    if position != data_bytes:
        raise CheckpointError(
            f"{path} should contain {position} bytes of tensors but has {data_bytes}. Download it again."
        )
    return tensors


def some(names: list[str], limit: int = 20) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
