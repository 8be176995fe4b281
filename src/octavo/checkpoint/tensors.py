"""The interface of all checkpoint files: named tensors, read in chunks of rows.

Files are read with pread into new buffers of a few megabytes and are never mapped: touched pages of a mapping
count towards this process's memory, and a file that is truncated while it is mapped kills the process.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import lcm, prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import CheckpointError

CHUNK_ELEMENTS = 1 << 20

# Element types of a chunk. numpy has no bfloat16: such a chunk holds the 16-bit patterns.
CHUNK_NUMPY_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


# Every chunk starts at a multiple of this many rows: threads can then pack neighbouring chunks in parallel.
CHUNK_ROWS = 32


@dataclass(frozen=True)
class TensorInfo:
    """A tensor under its Hugging Face name; `source_dtype` and `nbytes` describe it as stored in the file.

    `source_dtype` is an element type, or the name of a quantised format.
    """

    name: str
    shape: tuple[int, ...]
    source_dtype: str
    nbytes: int


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows of a tensor from row `start`, with all their columns.

    `dtype` is a key of CHUNK_NUMPY_TYPES or of FORMATS. For a key of FORMATS, the values are weight blocks:
    uint8 [rows, bytes].
    """

    start: int
    values: npt.NDArray[Any]
    dtype: str
    source_nbytes: int


class TensorStore(Protocol):
    """The weights of one checkpoint, independent of its file format."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors in file order, so that reading them in this order reads the disk sequentially."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that contain the tensors."""

    def chunks(self, name: str) -> Iterator[RowChunk]:
        """Yield all rows of a tensor as values, in order. The caller may keep or modify the arrays."""

    def blocks(self, name: str) -> Iterator[RowChunk]:
        """Yield all rows as weight blocks of the quantised format that the tensor is stored in."""


def row_spans(shape: tuple[int, ...], group: int = 1) -> Iterator[tuple[int, int]]:
    """Split the rows into spans of about CHUNK_ELEMENTS elements, at multiples of `group` and CHUNK_ROWS."""
    if prod(shape) == 0:
        return
    rows = shape[0] if shape else 1
    group = lcm(group, CHUNK_ROWS)
    step = max(CHUNK_ELEMENTS // (prod(shape[1:]) * group), 1) * group
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


@contextmanager
def open_for_pread(path: Path) -> Iterator[int]:
    try:
        # Without O_NONBLOCK, opening a named pipe would block until a writer opens it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"Cannot open {path}: {error.strerror}.") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(f"{path} is not a regular file.")
        yield descriptor
    finally:
        os.close(descriptor)


def read_exactly(descriptor: int, offset: int, length: int, path: Path) -> npt.NDArray[np.uint8]:
    """Read `length` bytes at `offset`. The caller has checked both against the size of the file."""
    buffer = np.empty(length, dtype=np.uint8)
    done = 0
    while done < length:
        try:
            got = os.preadv(descriptor, [buffer.data[done:]], offset + done)
        except OSError as error:
            raise CheckpointError(f"Cannot read {path} at byte {offset + done}: {error.strerror}.") from error
        if got == 0:
            raise CheckpointError(f"{path} became shorter while it was read. Is it still being downloaded?")
        done += got
    return buffer
