"""One weight of a quantised checkpoint: the tensors it consists of, and how its rows are read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.coded_rows import (
    CodedRows,
    Coding,
    as_blocks,
    as_values,
    check,
    scales_fit,
)
from octavo.checkpoint.quantized.refusal import damaged
from octavo.checkpoint.safetensors_file import SafetensorsStore, SafetensorsTensor
from octavo.checkpoint.tensors import row_spans
from octavo.errors import CheckpointError

SCALE_TYPES = ("F32", "F16", "BF16")
READ_ROWS = 8  # rows are read in multiples of this: packed zero points and the words of AWQ span eight rows

ReadRows = Callable[[int, int], CodedRows]


class QuantizedWeight(Protocol):
    """A matrix [out, in] under the name that it has in an unquantised checkpoint."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int:
        """Size of all its parts in the files."""

    def format(self) -> str | None:
        """Return the format of `octavo.weight_format` that stores it without loss. May read the scales."""

    def why_dequantised(self) -> str:
        """Return why `format` is None."""

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yield the first row and the rows of each chunk, as weight blocks of `format`."""

    def values(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yield the first row and the rows of each chunk, dequantised."""


@dataclass(frozen=True)
class CodedWeight:
    """A weight of codes and scales. `open_rows` is called once for each pass over the weight. It returns a
    function that reads rows, which may keep a packed tensor in memory during the pass."""

    name: str
    shape: tuple[int, int]
    nbytes: int
    coding: Coding
    scales: Callable[[], npt.NDArray[np.float32]] | None  # None: all values of their type are within bounds
    open_rows: Callable[[], ReadRows]

    def format(self) -> str | None:
        name = self.coding.format()
        return name if name is None or self._scales_fit() else None

    def why_dequantised(self) -> str:
        return self.coding.why_no_format() if self.coding.format() is None else "scales out of range"

    def _scales_fit(self) -> bool:
        return self.scales is None or scales_fit(self.scales())

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        for start, rows in self._rows():
            yield start, as_blocks(rows, self.coding)

    def values(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        for start, rows in self._rows():
            yield start, as_values(rows, self.coding)

    def _rows(self) -> Iterator[tuple[int, CodedRows]]:
        read = self.open_rows()
        for start, stop in row_spans(self.shape, READ_ROWS):
            rows = read(start, stop)
            check(self.name, rows, self.coding)
            yield start, rows


@dataclass(frozen=True)
class Parts:
    """The tensors of one module, by the last part of their names."""

    store: SafetensorsStore
    module: str

    @property
    def weight_name(self) -> str:
        return f"{self.module}.weight"

    def has(self, part: str) -> bool:
        return f"{self.module}.{part}" in self.store.entries

    def entry(
        self, part: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...] | None = None
    ) -> SafetensorsTensor:
        """Return a part after checking its type and shape. None in `shape` matches any size except zero."""
        entry = self.store.entries.get(f"{self.module}.{part}")
        if entry is None:
            raise CheckpointError(f"{self.module} is quantised but has no {part}. Download it again.")
        fits = shape is None or (
            len(shape) == len(entry.shape)
            and all(
                size == expected if expected is not None else size > 0
                for size, expected in zip(entry.shape, shape, strict=True)
            )
        )
        if entry.dtype not in dtypes or not fits:
            described = "any shape" if shape is None else f"[{', '.join(str(size or '*') for size in shape)}]"
            raise CheckpointError(
                f"{self.module}.{part} is {entry.dtype} {list(entry.shape)}; its scheme requires "
                f"{' or '.join(dtypes)} {described}. The config does not match the weights, or the file is "
                "damaged. Download the checkpoint again."
            )
        return entry

    def read(self, part: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        return self.store.read(f"{self.module}.{part}", start, stop)

    def read_scales(self, part: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Return scales of any type as float32."""
        raw = self.read(part, start, stop)
        match self.store.entries[f"{self.module}.{part}"].dtype:
            case "BF16":
                return (raw.astype(np.uint32) << 16).view(np.float32)
            case "F8_E8M0":  # powers of two; 255 is NaN
                exponents = raw.astype(np.int32) - 127
                return np.where(raw == 255, np.nan, np.ldexp(np.float32(1), exponents)).astype(np.float32)
            case _:
                return raw.astype(np.float32)

    def read_group_of(self, part: str, k: int, group_size: int) -> npt.NDArray[np.int64] | None:
        """Return the group of each column if columns were ordered by their activations, else None."""
        if not self.has(part):
            return None
        self.entry(part, ("I32", "I64"), (k,))
        group_of: npt.NDArray[np.int64] = self.read(part).astype(np.int64)
        lowest, highest = int(group_of.min()), int(group_of.max())
        if np.array_equal(group_of, np.arange(k) // group_size) or lowest == highest in (-1, 0):
            return None  # all 0 or all -1: initial values, left by a tool that does not order columns
        if lowest < 0 or highest >= -(-k // group_size):
            raise damaged(f"{self.module}.{part} refers to groups that do not exist")
        return group_of

    def scales_to_check(self, part: str) -> Callable[[], npt.NDArray[np.float32]] | None:
        """Return a function that reads the scales, or None if they need no check: all finite float16 values
        are within bounds."""
        if self.store.entries[f"{self.module}.{part}"].dtype == "F16":
            return None
        return lambda: self.read_scales(part)

    def nbytes(self, *parts: str) -> int:
        return sum(self.store.entries[f"{self.module}.{part}"].nbytes for part in parts if self.has(part))
