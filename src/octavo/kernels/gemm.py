"""Linear layers with packed weights."""

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from octavo.kernels.arguments import (
    CONSTANT,
    INPUT,
    NUMBER,
    Field,
    Kernel,
    KernelArguments,
    Pointer,
    ResultField,
    Size,
    StepValue,
    c_fields,
)
from octavo.kernels.library import Format, KernelLibrary, KernelPool, Memory
from octavo.kernels.spread import new_rows
from octavo.weight_format import FORMATS, BadBlocks

DTYPES = {torch.bfloat16: 0, torch.float32: 1}
ROW_GROUP = 32  # rows of a weight that are packed together
BAD_VALUE = 7  # OV_BAD_VALUE


class GemmArguments(KernelArguments):
    kernel = Kernel.GEMM
    declared = (
        Field("dtype", ctypes.c_int, NUMBER),
        Field("out_dtype", ctypes.c_int, NUMBER),
        Field("format", ctypes.c_int32, NUMBER),
        Field("reserved", ctypes.c_int32, NUMBER),
        Field("x", Pointer, INPUT),
        Field("x_stride", Size, NUMBER),
        Field("packed", Pointer, CONSTANT),
        Field("bias", Pointer, CONSTANT),
        Field("y", Pointer, ResultField("y_stride", "out_dtype")),
        Field("y_stride", Size, NUMBER),
        Field("m", Size, StepValue.NUM_ROWS),
        Field("n", Size, NUMBER),
        Field("k", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class EmbeddingArguments(KernelArguments):
    kernel = Kernel.EMBEDDING
    declared = (
        Field("format", ctypes.c_int32, NUMBER),
        Field("reserved", ctypes.c_int32, NUMBER),
        Field("packed", Pointer, CONSTANT),
        Field("n", Size, NUMBER),
        Field("k", Size, NUMBER),
        Field("ids", Pointer, StepValue.TOKEN_IDS),
        Field("y", Pointer, ResultField("y_stride", "format")),
        Field("y_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
    )
    _fields_ = c_fields(declared)


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_packed_bytes": (ctypes.c_uint64, (ctypes.c_int32, Size, Size)),
    "ov_pack_rows": (ctypes.c_int, (ctypes.c_int32, Pointer, Size, Size, Size, Size, Size, Pointer)),
    "ov_embedding": (ctypes.c_int, (Pointer, ctypes.POINTER(EmbeddingArguments))),
    "ov_gemm": (ctypes.c_int, (Pointer, ctypes.POINTER(GemmArguments))),
}


class PackedMatrix:
    """A packed weight [n, k]. It is also the target that rows are written to, so there is no second copy.

    It has its own memory unless `place` assigns other memory.

    Several threads may write it in parallel if their rows are in different groups of `ROW_GROUP`.
    """

    def __init__(self, library: KernelLibrary, n: int, k: int, format: str) -> None:
        """`format`: the name of a `Format`. Quantised weights are multiplied as bfloat16."""
        self._library = library
        self.n, self.k = n, k
        self.stored = Format[format]
        self.dtype = torch.float32 if self.stored == Format.F32 else torch.bfloat16
        self.num_bytes: int = library.functions.ov_packed_bytes(self.stored, n, k)
        if self.num_bytes == 0:
            raise ValueError(f"a weight [{n}, {k}] cannot be packed as {format}")
        self._owner: object = Memory(library, self.num_bytes)  # uses no physical memory until it is written
        self.address = self._owner.address

    def place(self, address: int, owner: object) -> None:
        """Use `num_bytes` at `address`, a multiple of 64: zeroed, or with this matrix already packed. `owner`
        keeps the memory alive."""
        self.address, self._owner = address, owner

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.k)

    @property
    def format(self) -> str | None:
        """The quantised format whose weight blocks it accepts. None: it accepts values."""
        return self.stored.name if self.stored.name in FORMATS else None

    @property
    def storage(self) -> "PackedMatrix":
        return self

    @property
    def layout(self) -> str:
        """Everything that the bytes depend on besides the values and the library's `layout_version`."""
        return f"{self.stored.name} {self.n} {self.k}"

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        """Write rows start, start + 1, ... in any dtype. Raises ValueError if they do not fit."""
        if self.format is not None or rows.dim() != 2 or rows.shape[1] != self.k:
            raise ValueError(f"{tuple(rows.shape)} at row {start} does not fit into {self}")
        self._pack(start, rows.to("cpu", self.dtype).contiguous())

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        """Write rows as weight blocks of the format, uint8 [rows, bytes per row]. Raises `BadBlocks` if a
        scale is not finite."""
        if (
            self.format is None
            or blocks.dtype != torch.uint8
            or blocks.dim() != 2
            or blocks.shape[1] != FORMATS[self.format].row_bytes(self.k)
        ):
            raise ValueError(f"weight blocks {tuple(blocks.shape)} at row {start} do not fit into {self}")
        self._pack(start, blocks.contiguous())

    def __str__(self) -> str:
        return f"a weight of {self.shape} in {self.stored.name}"

    def _pack(self, start: int, rows: torch.Tensor) -> None:
        status = self._library.functions.ov_pack_rows(
            self.stored, rows.data_ptr(), self.k, start, len(rows), self.n, self.k, self.address
        )
        if status == BAD_VALUE:
            raise BadBlocks("a scale is not finite")
        self._library.check(status)


def read_rows(pool: KernelPool, weight: PackedMatrix, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows of an embedding with these ids, [ids, k]."""
    if ids.dtype != torch.int64 or ids.dim() != 1 or ids.device.type != "cpu" or not ids.is_contiguous():
        raise ValueError("ids must be a contiguous int64 vector on the CPU")
    y = new_rows((len(ids), weight.k), weight.dtype)
    if len(ids) == 0:
        return y
    arguments = EmbeddingArguments(
        weight.stored,
        0,
        weight.address,
        weight.n,
        weight.k,
        ids.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        len(ids),
    )
    pool.run(arguments, weight, ids, y)
    return y


def multiply(
    pool: KernelPool,
    x: torch.Tensor,
    weight: PackedMatrix,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x [m, k] times the weight's transpose plus the float32 bias: [m, n], in `out` if given."""
    if x.dim() != 2 or x.dtype != weight.dtype or x.device.type != "cpu":
        raise ValueError(
            f"x is {x.dtype} {tuple(x.shape)} on {x.device}; "
            f"it must be {weight.dtype} [m, {weight.k}] on the CPU"
        )
    if x.shape[1] != weight.k:
        raise ValueError(f"x has {x.shape[1]} columns, but the weight has {weight.k}")
    if x.stride(1) != 1:
        x = x.contiguous()
    if bias is not None and (bias.dtype != torch.float32 or tuple(bias.shape) != (weight.n,)):
        raise ValueError(f"the bias must be float32 [{weight.n}]")
    shape = (len(x), weight.n)
    y = new_rows(shape, out_dtype) if out is None else out
    if tuple(y.shape) != shape or y.dtype != out_dtype or (y.numel() and y.stride(1) != 1):
        raise ValueError(f"out is {y.dtype} {tuple(y.shape)}, but the result is {out_dtype} {shape}")
    if len(x) == 0:
        return y
    arguments = GemmArguments(
        DTYPES[weight.dtype],
        DTYPES[out_dtype],
        weight.stored,
        0,
        x.data_ptr(),
        x.stride(0),
        weight.address,
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        len(x),
        weight.n,
        weight.k,
    )
    pool.run(arguments, x, weight, bias, y)
    return y
