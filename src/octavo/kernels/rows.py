"""Operations on rows of activations: norms, rope, gated activations, sums, caps. See `octavo.ops.interface`.

Tensors are on the CPU, bfloat16 or float32, and contiguous in their last dimension.
"""

import ctypes
import enum
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
from octavo.kernels.gemm import DTYPES
from octavo.kernels.library import KernelPool
from octavo.kernels.spread import new_rows


class Activation(enum.IntEnum):
    SILU = 0
    GELU = 1  # with the tanh approximation


class RmsNormArguments(KernelArguments):
    kernel = Kernel.RMS_NORM
    declared = (
        Field("dtype", ctypes.c_int32, NUMBER),
        Field("eps", ctypes.c_float, NUMBER),
        Field("x", Pointer, INPUT),
        Field("x_stride", Size, NUMBER),
        Field("x_head_stride", Size, NUMBER),
        Field("gain", Pointer, CONSTANT),
        Field("y", Pointer, ResultField("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("y_head_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("num_heads", Size, NUMBER),
        Field("width", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class AddRmsNormArguments(KernelArguments):
    kernel = Kernel.ADD_RMS_NORM
    declared = (
        Field("dtype", ctypes.c_int32, NUMBER),
        Field("eps", ctypes.c_float, NUMBER),
        Field("stream", Pointer, INPUT),
        Field("stream_stride", Size, NUMBER),
        Field("update", Pointer, INPUT),
        Field("update_stride", Size, NUMBER),
        Field("gain", Pointer, CONSTANT),
        Field("sum", Pointer, ResultField("sum_stride", "dtype")),
        Field("sum_stride", Size, NUMBER),
        Field("y", Pointer, ResultField("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("width", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class RopeArguments(KernelArguments):
    kernel = Kernel.ROPE
    declared = (
        Field("dtype", ctypes.c_int32, NUMBER),
        Field("x", Pointer, INPUT),
        Field("x_stride", Size, NUMBER),
        Field("x_head_stride", Size, NUMBER),
        Field("cosines", Pointer, CONSTANT),
        Field("sines", Pointer, CONSTANT),
        Field("positions", Pointer, StepValue.POSITIONS),
        Field("num_positions", Size, NUMBER),
        Field("y", Pointer, ResultField("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("y_head_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("num_heads", Size, NUMBER),
        Field("head_dim", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class GatedArguments(KernelArguments):
    kernel = Kernel.GATED
    declared = (
        Field("dtype", ctypes.c_int32, NUMBER),
        Field("activation", ctypes.c_int32, NUMBER),
        Field("gate_up", Pointer, INPUT),
        Field("gate_up_stride", Size, NUMBER),
        Field("y", Pointer, ResultField("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("width", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class AddArguments(KernelArguments):
    kernel = Kernel.ADD
    declared = (
        Field("dtype", ctypes.c_int32, NUMBER),
        Field("a", Pointer, INPUT),
        Field("a_stride", Size, NUMBER),
        Field("b", Pointer, INPUT),
        Field("b_stride", Size, NUMBER),
        Field("y", Pointer, ResultField("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("width", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class ScaleArguments(KernelArguments):
    kernel = Kernel.SCALE
    declared = (
        Field("dtype", ctypes.c_int32, NUMBER),
        Field("factor", ctypes.c_float, NUMBER),
        Field("x", Pointer, INPUT),
        Field("x_stride", Size, NUMBER),
        Field("y", Pointer, ResultField("y_stride", "dtype")),
        Field("y_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("width", Size, NUMBER),
    )
    _fields_ = c_fields(declared)


class SoftcapArguments(ctypes.Structure):
    """`ov_softcap_args`. This kernel is never on the tape, which ends before the logits."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("cap", ctypes.c_float),
        ("x", Pointer),
        ("x_stride", Size),
        ("y", Pointer),
        ("y_stride", Size),
        ("num_rows", Size),
        ("width", Size),
    )


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_rms_norm": (ctypes.c_int, (Pointer, ctypes.POINTER(RmsNormArguments))),
    "ov_add_rms_norm": (ctypes.c_int, (Pointer, ctypes.POINTER(AddRmsNormArguments))),
    "ov_rope": (ctypes.c_int, (Pointer, ctypes.POINTER(RopeArguments))),
    "ov_gated": (ctypes.c_int, (Pointer, ctypes.POINTER(GatedArguments))),
    "ov_add": (ctypes.c_int, (Pointer, ctypes.POINTER(AddArguments))),
    # A typed pointer, because `c_char_p` and `c_void_p` accept immutable `bytes`, and the kernel writes.
    "ov_finite": (ctypes.c_int, (ctypes.c_int32, Pointer, Size, Size, Size, ctypes.POINTER(ctypes.c_uint8))),
    "ov_scale": (ctypes.c_int, (Pointer, ctypes.POINTER(ScaleArguments))),
    "ov_softcap": (ctypes.c_int, (Pointer, ctypes.POINTER(SoftcapArguments))),
    "ov_rope_angles": (ctypes.c_int, (Pointer, Pointer, Size, Size, Size, Pointer, Pointer)),
}


def rms_norm(pool: KernelPool, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise over the last dimension of [T, width] or [T, heads, width]."""
    heads = _as_heads(x)
    _check_gain(gain, heads.shape[2])
    y = new_rows(x.shape, x.dtype)
    if not y.numel():
        return y
    arguments = RmsNormArguments(
        DTYPES[x.dtype],
        eps,
        heads.data_ptr(),
        *_head_strides(heads),
        gain.data_ptr(),
        y.data_ptr(),
        *_head_strides(_as_heads(y)),
        *heads.shape,
    )
    pool.run(arguments, x, gain, y)
    return y


def add_rms_norm(
    pool: KernelPool, stream: torch.Tensor, update: torch.Tensor, gain: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (stream + update, its norm), each [T, width]."""
    _check_rows(stream)
    _check_same(stream, update)
    _check_gain(gain, stream.shape[1])
    total, y = new_rows(stream.shape, stream.dtype), new_rows(stream.shape, stream.dtype)
    if not y.numel():
        return total, y
    arguments = AddRmsNormArguments(
        DTYPES[stream.dtype],
        eps,
        stream.data_ptr(),
        _row_stride(stream),
        update.data_ptr(),
        _row_stride(update),
        gain.data_ptr(),
        total.data_ptr(),
        _row_stride(total),
        y.data_ptr(),
        _row_stride(y),
        *stream.shape,
    )
    pool.run(arguments, stream, update, gain, total, y)
    return total, y


def rope(
    pool: KernelPool,
    x: torch.Tensor,
    positions: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate each head's first half against its second, [T, heads, head_dim]. `out` may be `x`."""
    if x.dim() != 3:
        raise ValueError(f"{tuple(x.shape)} is not [T, heads, head_dim]")
    _check_rows(x)
    y = new_rows(x.shape, x.dtype) if out is None else out
    _check_same(x, y)
    table = cosines.shape
    for angles in (cosines, sines):
        if angles.dtype != torch.float32 or angles.shape != table or not angles.is_contiguous():
            raise ValueError("rope tables must be float32 [positions, head_dim / 2] and contiguous")
    if len(table) != 2 or 2 * table[1] != x.shape[2]:
        raise ValueError(f"a rope table of {tuple(table)} does not match heads of size {x.shape[2]}")
    if positions.dtype != torch.int64 or tuple(positions.shape) != (len(x),) or not positions.is_contiguous():
        raise ValueError(f"positions must be int64 [{len(x)}] and contiguous")
    if not y.numel():
        return y
    arguments = RopeArguments(
        DTYPES[x.dtype],
        x.data_ptr(),
        *_head_strides(x),
        cosines.data_ptr(),
        sines.data_ptr(),
        positions.data_ptr(),
        table[0],
        y.data_ptr(),
        *_head_strides(y),
        *x.shape,
    )
    pool.run(arguments, x, positions, cosines, sines, y)
    return y


def rope_angles(
    pool: KernelPool, inverse_frequencies: torch.Tensor, first_position: int, num_positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tables of `rope` from `first_position` on: cosines and sines, [num_positions, head_dim / 2].

    They are computed immediately, even during a recording: tables are constants of the tape.
    """
    if (
        inverse_frequencies.dtype != torch.float32
        or inverse_frequencies.dim() != 1
        or inverse_frequencies.device.type != "cpu"
        or not inverse_frequencies.is_contiguous()
    ):
        raise ValueError("inverse frequencies must be a contiguous float32 vector on the CPU")
    half = len(inverse_frequencies)
    cosines, sines = (torch.empty(num_positions, half, dtype=torch.float32) for _ in range(2))
    if cosines.numel():
        pool.library.check(
            pool.library.functions.ov_rope_angles(
                pool.handle,
                inverse_frequencies.data_ptr(),
                half,
                first_position,
                num_positions,
                cosines.data_ptr(),
                sines.data_ptr(),
            )
        )
    return cosines, sines


def gated(pool: KernelPool, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return activation(gate) * up, [T, n], for [T, 2 * n] with the gate first."""
    _check_rows(gate_up)
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"{tuple(gate_up.shape)} is not [T, 2 * n]")
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = new_rows((num_rows, width), gate_up.dtype)
    if not y.numel():
        return y
    arguments = GatedArguments(
        DTYPES[gate_up.dtype],
        activation,
        gate_up.data_ptr(),
        _row_stride(gate_up),
        y.data_ptr(),
        _row_stride(y),
        num_rows,
        width,
    )
    pool.run(arguments, gate_up, y)
    return y


def add(pool: KernelPool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a + b, [T, width]."""
    _check_rows(a)
    _check_same(a, b)
    y = new_rows(a.shape, a.dtype)
    if not y.numel():
        return y
    arguments = AddArguments(
        DTYPES[a.dtype],
        a.data_ptr(),
        _row_stride(a),
        b.data_ptr(),
        _row_stride(b),
        y.data_ptr(),
        _row_stride(y),
        *a.shape,
    )
    pool.run(arguments, a, b, y)
    return y


def scale(pool: KernelPool, x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x * factor, [T, width]. The factor is not rounded to the dtype."""
    _check_rows(x)
    y = new_rows(x.shape, x.dtype)
    if not y.numel():
        return y
    arguments = ScaleArguments(
        DTYPES[x.dtype], factor, x.data_ptr(), _row_stride(x), y.data_ptr(), _row_stride(y), *x.shape
    )
    pool.run(arguments, x, y)
    return y


def softcap(pool: KernelPool, x: torch.Tensor, cap: float) -> torch.Tensor:
    """Replace x [T, width] by tanh(x / cap) * cap. Runs immediately, even during a recording."""
    _check_rows(x)
    if x.numel():
        stride = _row_stride(x)
        arguments = SoftcapArguments(
            DTYPES[x.dtype], cap, x.data_ptr(), stride, x.data_ptr(), stride, *x.shape
        )
        pool.library.check(pool.library.functions.ov_softcap(pool.handle, ctypes.byref(arguments)))
    return x


def are_finite(pool: KernelPool, x: torch.Tensor) -> list[bool]:
    """Return for each row of [T, width] whether all its numbers are finite."""
    _check_rows(x)
    if not x.numel():
        return [True] * len(x)
    finite = (ctypes.c_uint8 * len(x))()
    pool.library.check(
        pool.library.functions.ov_finite(DTYPES[x.dtype], x.data_ptr(), _row_stride(x), *x.shape, finite)
    )
    return [bool(flag) for flag in finite]


def _check_rows(x: torch.Tensor) -> None:
    if x.dtype not in DTYPES or x.device.type != "cpu" or x.dim() not in (2, 3):
        raise ValueError(
            f"expected bfloat16 or float32 rows on the CPU, not {x.dtype} {tuple(x.shape)} on {x.device}"
        )
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError("rows must be contiguous in their last dimension")


def _check_same(x: torch.Tensor, other: torch.Tensor) -> None:
    _check_rows(other)
    if other.shape != x.shape or other.dtype != x.dtype:
        raise ValueError(f"{other.dtype} {tuple(other.shape)} does not match {x.dtype} {tuple(x.shape)}")


def _check_gain(gain: torch.Tensor, width: int) -> None:
    if gain.dtype != torch.float32 or tuple(gain.shape) != (width,) or not gain.is_contiguous():
        raise ValueError(f"the gain must be float32 [{width}]")


def _as_heads(x: torch.Tensor) -> torch.Tensor:
    _check_rows(x)
    return x if x.dim() == 3 else x.unsqueeze(1)


def _row_stride(x: torch.Tensor) -> int:
    """Return the row stride of [T, width]. In torch, the stride of a single row is arbitrary."""
    if x.dim() != 2:
        raise ValueError(f"{tuple(x.shape)} is not [T, width]")
    return x.stride(0) if len(x) > 1 else x.shape[1]


def _head_strides(x: torch.Tensor) -> tuple[int, int]:
    """Return the strides of rows and heads of [T, heads, width]."""
    num_rows, num_heads, width = x.shape
    head_stride = x.stride(1) if num_heads > 1 else width
    return x.stride(0) if num_rows > 1 else (num_heads - 1) * head_stride + width, head_stride
