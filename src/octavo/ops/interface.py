"""The operations that every backend implements, and the parameters they work on.

A model uses only these operations on tensors, even for views. A backend can therefore record and replay the
calls, and can store weights in any layout.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo.ops.batch import Batch
from octavo.ops.kv import KV
from octavo.ops.parameters import Norm
from octavo.ops.rope import RopeTable
from octavo.protocol import KernelTimes
from octavo.sampling import Sampler

Forward = Callable[[Batch], torch.Tensor]  # a model's forward pass, bound to its KV blocks


class WeightStorage(Protocol):
    """Memory for packed weights that can be shared with other engines and reused without writing it again."""

    @property
    def layout(self) -> str:
        """Everything that the bytes depend on besides the written values."""
        ...

    @property
    def num_bytes(self) -> int: ...

    def place(self, address: int, owner: object) -> None:
        """Use the memory at `address`: zeroed, or with the earlier content of an equal storage. Call it
        before writing the first row. `owner` keeps the memory alive."""
        ...


@dataclass(frozen=True)
class Packing:
    """What is needed to store packed weights in a file."""

    layout_version: int  # packed bytes are valid only for this version
    checksum: Callable[[int, int], int]  # of (address, number of bytes); thread-safe


class WeightTarget(Protocol):
    """The destination of a checkpoint tensor. Rows are written in chunks, as values or as weight blocks.

    Several threads may write in parallel if their ranges of rows start at multiples of 32.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def storage(self) -> WeightStorage | None:
        """The storage that rows are written into; other targets may share it. None: memory of this target."""
        ...

    @property
    def format(self) -> str | None:
        """Name of the quantised format (in `FORMATS`) whose weight blocks it accepts. None: it accepts
        values."""
        ...

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        """Write `rows`, of any dtype and device, from row `start` on; ValueError if they do not fit."""
        ...

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        """Write weight blocks, uint8 [rows, bytes per row], to a target with a format. Raises `BadBlocks` if
        one is damaged."""
        ...


@dataclass(frozen=True)
class LinearPart:
    """One of the matrices that are stacked in a `Linear`, and the quantised format that it is stored in."""

    num_rows: int
    format: str | None = None


class Linear(Protocol):
    """A matrix [out_features, in_features] and an optional bias, stored as the ops that made it choose."""

    @property
    def weights(self) -> tuple[WeightTarget, ...]:
        """One target per part."""
        ...

    @property
    def bias(self) -> WeightTarget | None:
        """The bias of all parts together."""
        ...


@dataclass(frozen=True)
class AttentionSpec:
    """A query at position p sees the keys in (p - window, p]; without a window, all up to p."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class Ops(Protocol):
    """Activations are [T, width], one row per token, in `dtype` on `device`.

    Norms, rope, softmax and activation functions compute in float32 and round once, at the end.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def arithmetic(self) -> int | Mapping[str, object]:
        """What determines the bits of every result: the number of a definition that is valid on every machine
        or, without such a definition, the facts of this machine."""
        ...

    @property
    def packing(self) -> Packing | None:
        """The packing of targets that have a storage. None: no target has one."""
        ...

    def new_sampler(self) -> Sampler: ...

    def capture(self, forward: Forward, *, block_size: int, max_positions: int) -> Forward:
        """Return a function whose results are bit-identical to those of `forward`, for contexts up to
        `max_positions`. Ops that support recording record it now and replay it as a whole in each step. One
        caller at a time."""
        ...

    def kernel_times(self) -> KernelTimes | None:
        """Return the time that kernels took since the ops were made, or None if it is not measured."""
        ...

    def new_linear(self, parts: Sequence[LinearPart], in_features: int, *, bias: bool = False) -> Linear:
        """Return one matrix of all parts. Its weights are undefined until they are written.

        A part keeps its format if these ops can compute with it; otherwise its target accepts values.
        """
        ...

    def new_embedding(self, num_tokens: int, width: int, format: str | None = None) -> Linear:
        """Return a table for `embedding`. With tied weights, `logits` uses it too."""
        ...

    def new_norm(self, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        """Return a norm whose gain is `offset` plus the weight in the checkpoint."""
        ...

    def new_rope(self, inverse_frequencies: torch.Tensor) -> RopeTable:
        """Return a rope table for `inverse_frequencies`: float32 [head_dim / 2], on the CPU."""
        ...

    def new_kv(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> KV:
        """Return uninitialised blocks for one layer's keys and values."""
        ...

    def embedding(self, table: Linear, token_ids: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """Return the tokens' rows times `scale`, after rounding `scale` to the dtype."""
        ...

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor: ...

    def logits(self, x: torch.Tensor, head: Linear, *, softcap: float | None = None) -> torch.Tensor:
        """Return float32 [R, num_tokens]."""
        ...

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor: ...

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Normalise over the last dimension."""
        ...

    def add_rms_norm(
        self, stream: torch.Tensor, update: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (stream + update, its norm)."""
        ...

    def split_heads(self, qkv: torch.Tensor, sizes: Sequence[int], head_dim: int) -> tuple[torch.Tensor, ...]:
        """Split [T, sum(sizes) * head_dim] into one [T, size, head_dim] per size."""
        ...

    def rope(
        self, query: torch.Tensor, key: torch.Tensor, batch: Batch, table: RopeTable
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate each head's first half against its second."""
        ...

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        batch: Batch,
        kv: KV,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        """Write `key` and `value` into the blocks, attend over them and return [T, heads * head_dim].

        Query head h reads the key-value head h // (heads // kv_heads).
        """
        ...

    def are_finite(self, x: torch.Tensor) -> list[bool]:
        """Return for each row whether all its numbers are finite."""
        ...

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up for [T, 2 * n] with the gate first."""
        ...

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return gelu(gate) * up with the tanh approximation of gelu."""
        ...
