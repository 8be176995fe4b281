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
    Result,
    Size,
    StepValue,
    c_fields,
)
from octavo.kernels.library import Engine, KernelLibrary, Memory
from octavo.kernels.spread import new_rows

DTYPES = {torch.bfloat16: 0, torch.float32: 1}


class GemmArguments(KernelArguments):
    kernel = Kernel.GEMM
    declared = (
        Field("dtype", ctypes.c_int, NUMBER),
        Field("out_dtype", ctypes.c_int, NUMBER),
        Field("x", Pointer, INPUT),
        Field("x_stride", Size, NUMBER),
        Field("packed", Pointer, CONSTANT),
        Field("bias", Pointer, CONSTANT),
        Field("y", Pointer, Result("y_stride", "out_dtype")),
        Field("y_stride", Size, NUMBER),
        Field("m", Size, StepValue.NUM_ROWS),
        Field("n", Size, NUMBER),
        Field("k", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class EmbeddingArguments(KernelArguments):
    kernel = Kernel.EMBEDDING
    declared = (
        Field("dtype", ctypes.c_int, NUMBER),
        Field("packed", Pointer, CONSTANT),
        Field("n", Size, NUMBER),
        Field("k", Size, NUMBER),
        Field("ids", Pointer, StepValue.TOKEN_IDS),
        Field("y", Pointer, Result("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
    )
    _fields_ = c_fields(declared)


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_packed_bytes": (ctypes.c_uint64, (ctypes.c_int, Size, Size)),
    "ov_pack_rows": (ctypes.c_int, (ctypes.c_int, Pointer, Size, Size, Size, Size, Size, Pointer)),
    "ov_embedding": (ctypes.c_int, (Pointer, ctypes.POINTER(EmbeddingArguments))),
    "ov_gemm": (ctypes.c_int, (Pointer, ctypes.POINTER(GemmArguments))),
}


class PackedMatrix:
    """A weight [n, k] in the packed form, and the target its rows are streamed into: no second copy."""

    def __init__(self, library: KernelLibrary, n: int, k: int, dtype: torch.dtype) -> None:
        self._library = library
        self.n, self.k, self.dtype = n, k, dtype
        self._memory = Memory(library, library.functions.ov_packed_bytes(DTYPES[dtype], n, k))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.k)

    @property
    def address(self) -> int | None:
        return self._memory.address

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        """Rows start, start + 1, ... in any dtype. ValueError if they do not fit."""
        if rows.dim() != 2 or rows.shape[1] != self.k:
            raise ValueError(f"{tuple(rows.shape)} at row {start} does not fit into a weight of {self.shape}")
        rows = rows.to("cpu", self.dtype).contiguous()
        self._library.check(
            self._library.functions.ov_pack_rows(
                DTYPES[self.dtype], rows.data_ptr(), self.k, start, len(rows), self.n, self.k, self.address
            )
        )


def read_rows(engine: Engine, weight: PackedMatrix, ids: torch.Tensor) -> torch.Tensor:
    """[ids, k]: what an embedding looks up."""
    if ids.dtype != torch.int64 or ids.dim() != 1 or ids.device.type != "cpu" or not ids.is_contiguous():
        raise ValueError("ids must be a contiguous int64 vector on the CPU")
    y = new_rows((len(ids), weight.k), weight.dtype)
    if len(ids) == 0:
        return y
    arguments = EmbeddingArguments(
        DTYPES[weight.dtype],
        weight.address,
        weight.n,
        weight.k,
        ids.data_ptr(),
        y.data_ptr(),
        y.stride(0),
        len(ids),
    )
    engine.run(arguments, weight, ids, y)
    return y


def multiply(
    engine: Engine, x: torch.Tensor, weight: PackedMatrix, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """x [m, k] times the weight's transpose, plus the bias (float32): [m, n]"""
    if x.dim() != 2 or x.dtype != weight.dtype or x.device.type != "cpu":
        raise ValueError(
            f"x is {x.dtype} {tuple(x.shape)} on {x.device}; {weight.dtype} [m, {weight.k}] is wanted"
        )
    if x.shape[1] != weight.k:
        raise ValueError(f"x has {x.shape[1]} columns, the weight has {weight.k}")
    if x.stride(1) != 1:
        x = x.contiguous()
    if bias is not None and (bias.dtype != torch.float32 or tuple(bias.shape) != (weight.n,)):
        raise ValueError(f"the bias must be float32 [{weight.n}]")
    y = new_rows((len(x), weight.n), out_dtype)
    if len(x) == 0:
        return y
    arguments = GemmArguments(
        DTYPES[weight.dtype],
        DTYPES[out_dtype],
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
    engine.run(arguments, x, weight, bias, y)
    return y
