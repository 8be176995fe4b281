"""KV blocks, and attention over them."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from octavo.kernels.library import KernelLibrary, KernelPool, Memory
from octavo.kernels.spread import new_rows


class KVBlocksStruct(ctypes.Structure):
    """`ov_kv_blocks` of octavo_kernels.h, field by field."""

    _fields_ = (
        ("dtype", ctypes.c_int),
        ("keys", Pointer),
        ("values", Pointer),
        ("num_blocks", Size),
        ("block_size", Size),
        ("kv_heads", Size),
        ("head_dim", Size),
    )


class KVWriteArguments(KernelArguments):
    kernel = Kernel.KV_WRITE
    declared = (
        Field("kv", KVBlocksStruct, CONSTANT),
        Field("k", Pointer, INPUT),
        Field("k_stride", Size, NUMBER),
        Field("k_head_stride", Size, NUMBER),
        Field("v", Pointer, INPUT),
        Field("v_stride", Size, NUMBER),
        Field("v_head_stride", Size, NUMBER),
        Field("slots", Pointer, StepValue.KV_SLOTS),
        Field("num_rows", Size, StepValue.NUM_ROWS),
    )
    _fields_ = c_fields(declared)


class AttentionArguments(KernelArguments):
    kernel = Kernel.ATTENTION
    declared = (
        Field("kv", KVBlocksStruct, CONSTANT),
        Field("q", Pointer, INPUT),
        Field("q_stride", Size, NUMBER),
        Field("q_head_stride", Size, NUMBER),
        Field("out", Pointer, ResultField("out_stride", "kv.dtype")),
        Field("out_stride", Size, NUMBER),
        Field("out_head_stride", Size, NUMBER),
        Field("num_rows", Size, StepValue.NUM_ROWS),
        Field("heads", Size, NUMBER),
        Field("num_sequences", Size, StepValue.NUM_SEQUENCES),
        Field("first_rows", Pointer, StepValue.FIRST_ROWS),
        Field("row_counts", Pointer, StepValue.ROW_COUNTS),
        Field("contexts", Pointer, StepValue.CONTEXTS),
        Field("block_offsets", Pointer, StepValue.BLOCK_OFFSETS),
        Field("blocks", Pointer, StepValue.BLOCKS),
        Field("window", Size, NUMBER),
        Field("scale", ctypes.c_float, NUMBER),
        Field("softcap", ctypes.c_float, NUMBER),
    )
    _fields_ = c_fields(declared)


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_kv_bytes": (ctypes.c_uint64, (ctypes.c_int, Size, Size, Size, Size)),
    "ov_kv_write": (ctypes.c_int, (Pointer, ctypes.POINTER(KVWriteArguments))),
    "ov_attention": (ctypes.c_int, (Pointer, ctypes.POINTER(AttentionArguments))),
}


class KVBlocks:
    """One layer's keys and values in the layout of attention.h. A row is undefined until it is written."""

    def __init__(
        self,
        library: KernelLibrary,
        *,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.kv_heads, self.head_dim, self.dtype = kv_heads, head_dim, dtype
        sizes = num_blocks, block_size, kv_heads, head_dim
        num_bytes = library.functions.ov_kv_bytes(DTYPES[dtype], *sizes)
        if num_bytes == 0:
            raise ValueError(
                f"unsupported KV memory ({num_blocks} blocks x {block_size} tokens x {kv_heads} heads x "
                f"{head_dim}): the block size must be a multiple of 32, the head size one of 16 up to 256"
            )
        self.keys, self.values = Memory(library, num_bytes), Memory(library, num_bytes)
        self.struct = KVBlocksStruct(DTYPES[dtype], self.keys.address, self.values.address, *sizes)

    @staticmethod
    def num_bytes(
        library: KernelLibrary, *, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Return the size of one block's keys and values, or 0 if the kernels do not support such blocks."""
        return 2 * int(library.functions.ov_kv_bytes(DTYPES[dtype], 1, block_size, kv_heads, head_dim))


@dataclass(frozen=True)
class SequenceTable:
    """The sequences of a step as the kernel reads them: contiguous int64 vectors on the CPU.

    Row r of sequence s is row first_rows[s] + r of the batch and has the position
    contexts[s] - row_counts[s] + r; position p is in block blocks[block_offsets[s] + p // block_size].
    """

    first_rows: torch.Tensor
    row_counts: torch.Tensor
    contexts: torch.Tensor
    block_offsets: torch.Tensor  # one element more than sequences
    blocks: torch.Tensor

    def __post_init__(self) -> None:
        tensors = self.first_rows, self.row_counts, self.contexts, self.block_offsets, self.blocks
        for tensor in tensors:
            if tensor.dtype != torch.int64 or tensor.dim() != 1 or not tensor.is_contiguous():
                raise ValueError("the vectors of a sequence table must be contiguous int64")
            if tensor.device.type != "cpu":
                raise ValueError(f"a sequence table must be on the CPU, not on {tensor.device}")
        size = len(self.first_rows)
        if size == 0 or [len(tensor) for tensor in tensors[1:4]] != [size, size, size + 1]:
            raise ValueError("the vectors of a sequence table must have one element per sequence")
        if int(self.block_offsets[-1]) > len(self.blocks):
            raise ValueError(
                f"offsets up to {int(self.block_offsets[-1])}, but only {len(self.blocks)} blocks"
            )

    @classmethod
    def from_lists(
        cls,
        first_rows: Sequence[int],
        row_counts: Sequence[int],
        contexts: Sequence[int],
        blocks: Sequence[torch.Tensor],
    ) -> "SequenceTable":
        """Return a table of lists with one element per sequence. `blocks`: the int64 ids of its blocks."""
        counts = torch.tensor([0, *map(len, blocks)])
        return cls(
            torch.tensor(first_rows, dtype=torch.int64),
            torch.tensor(row_counts, dtype=torch.int64),
            torch.tensor(contexts, dtype=torch.int64),
            counts.cumsum(0),
            torch.cat([ids.cpu() for ids in blocks]),
        )


def write_kv(
    pool: KernelPool, kv: KVBlocks, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write rows [T, kv_heads, head_dim] to distinct slots [T]: block * block_size + offset."""
    key, value = (
        _checked("keys", key, kv, kv.kv_heads),
        _checked("values", value, kv, kv.kv_heads),
    )
    if slots.dtype != torch.int64 or slots.dim() != 1 or slots.device.type != "cpu":
        raise ValueError("slots must be an int64 vector on the CPU")
    if not len(key) == len(value) == len(slots):
        raise ValueError(f"{len(key)} keys, {len(value)} values and {len(slots)} slots")
    if len(key) == 0:
        return
    slots = slots.contiguous()
    arguments = KVWriteArguments(
        kv.struct,
        key.data_ptr(),
        *_strides(key),
        value.data_ptr(),
        *_strides(value),
        slots.data_ptr(),
        len(slots),
    )
    pool.run(arguments, kv, key, value, slots)


def attend(
    pool: KernelPool,
    kv: KVBlocks,
    query: torch.Tensor,
    sequences: SequenceTable,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attend with queries [T, heads, head_dim] and return the same shape. The blocks contain every key that
    the queries see."""
    if query.dim() != 3 or query.shape[1] == 0 or query.shape[1] % kv.kv_heads:
        raise ValueError(f"queries of {tuple(query.shape)} do not match {kv.kv_heads} key-value heads")
    if window is not None and window < 1:
        raise ValueError(f"the window must be at least 1, not {window}")
    query = _checked("queries", query, kv, query.shape[1])
    out = new_rows(query.shape, query.dtype)
    if len(query) == 0:
        return out
    arguments = AttentionArguments(
        kv.struct,
        query.data_ptr(),
        *_strides(query),
        out.data_ptr(),
        *_strides(out),
        len(query),
        query.shape[1],
        len(sequences.first_rows),
        sequences.first_rows.data_ptr(),
        sequences.row_counts.data_ptr(),
        sequences.contexts.data_ptr(),
        sequences.block_offsets.data_ptr(),
        sequences.blocks.data_ptr(),
        window or 0,
        scale,
        softcap or 0.0,
    )
    pool.run(arguments, kv, query, sequences, out)
    return out


def _checked(name: str, rows: torch.Tensor, kv: KVBlocks, heads: int) -> torch.Tensor:
    """Check shape, dtype and device. Return [T, heads, head_dim] token-major, copied if necessary."""
    if rows.dim() != 3 or tuple(rows.shape[1:]) != (heads, kv.head_dim):
        raise ValueError(f"{name} are {tuple(rows.shape)}; they must be [T, {heads}, {kv.head_dim}]")
    if rows.dtype != kv.dtype or rows.device.type != "cpu":
        raise ValueError(f"{name} are {rows.dtype} on {rows.device}; they must be {kv.dtype} on the CPU")
    stride, head_stride = _strides(rows)
    is_token_major = head_stride >= kv.head_dim and stride >= (heads - 1) * head_stride + kv.head_dim
    return rows if is_token_major and rows.stride(2) == 1 else rows.contiguous()


def _strides(rows: torch.Tensor) -> tuple[int, int]:
    """Return the strides of tokens and heads. In torch, the stride of a dimension of size 1 is arbitrary."""
    num_rows, heads, head_dim = rows.shape
    head_stride = rows.stride(1) if heads > 1 else head_dim
    return rows.stride(0) if num_rows > 1 else heads * head_stride, head_stride
