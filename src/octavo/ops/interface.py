"""The operations every backend has, and the parameters they work on.

A model calls nothing but these on a tensor, views included: so a backend may record the calls and replay
them, and may keep weights in any layout it likes.
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

Forward = Callable[[Batch], torch.Tensor]  # a model's pass over its KV pages


class WeightStorage(Protocol):
    """Memory for packed weights that may be shared with other engines, and need not be written again."""

    @property
    def layout(self) -> str:
        """What the bytes depend on besides the values that are written."""
        ...

    @property
    def num_bytes(self) -> int: ...

    def place(self, address: int, owner: object) -> None:
        """Before the first row: zeroed memory, or what such a storage held before. `owner` keeps it."""
        ...


@dataclass(frozen=True)
class Packing:
    """What others must know of packed weights to keep them in a file."""

    layout_version: int  # with another one, the bytes mean something else
    checksum: Callable[[int, int], int]  # of (address, number of bytes); threads may call it at once


class WeightTarget(Protocol):
    """A place a checkpoint tensor is streamed into, some rows at a time: as values, or as it is stored.

    Several threads may write at once, if the ranges of their rows begin at multiples of 32.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def storage(self) -> WeightStorage | None:
        """What the rows are written into, which may hold other targets too; None: this target's own."""
        ...

    @property
    def format(self) -> str | None:
        """The quantised form, by its name in `FORMATS`, whose blocks it takes; None: it takes values."""
        ...

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        """Puts `rows`, of any dtype and device, at row `start` and on. ValueError if they do not fit."""
        ...

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        """For a target with a format: uint8 [rows, bytes of a row]. `BadBlocks` if one is damaged."""
        ...


@dataclass(frozen=True)
class LinearPart:
    """One of the matrices that are stacked in a `Linear`, and the quantised form that it is stored in."""

    num_rows: int
    format: str | None = None


class Linear(Protocol):
    """A matrix [out_features, in_features] and maybe a bias, stored as the ops that made it like."""

    @property
    def weights(self) -> tuple[WeightTarget, ...]:
        """One for each part."""
        ...

    @property
    def bias(self) -> WeightTarget | None:
        """Of all parts together."""
        ...


@dataclass(frozen=True)
class AttentionSpec:
    """A query at position p sees the keys in (p - window, p]; without a window, all up to p."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class Ops(Protocol):
    """Activations are [T, width], one row per token, in `dtype` on `device`.

    Norms, rope, softmax and activations compute in float32 and round once, at the end.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def arithmetic(self) -> int | Mapping[str, object]:
        """What decides the bits of every result: the number of a definition that holds on every machine, or
        the facts of this one where there is none."""
        ...

    @property
    def packing(self) -> Packing | None:
        """Of the targets that have a storage; None: none has."""
        ...

    def new_sampler(self) -> Sampler: ...

    def capture(self, forward: Forward, *, page_size: int, max_positions: int) -> Forward:
        """A function with the results of `forward`, bit for bit, for contexts up to `max_positions`. Ops that
        can record it do so now, and replay it as a whole in each step. One caller at a time."""
        ...

    def kernel_times(self) -> KernelTimes | None:
        """What the kernels took since the ops were made; None if nobody keeps an account."""
        ...

    def new_linear(self, parts: Sequence[LinearPart], in_features: int, *, bias: bool = False) -> Linear:
        """One matrix of all parts. Its weights are garbage until they are written.

        A part is kept in its form if these ops can compute with it; if not, its target takes values.
        """
        ...

    def new_embedding(self, num_tokens: int, width: int, format: str | None = None) -> Linear:
        """A table for `embedding`, which with tied weights serves `logits` too."""
        ...

    def new_norm(self, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        """The gain is `offset` plus the weight in the checkpoint."""
        ...

    def new_rope(self, inverse_frequencies: torch.Tensor) -> RopeTable:
        """`inverse_frequencies`: float32 [head_dim / 2], on the CPU."""
        ...

    def new_kv(self, num_blocks: int, page_size: int, kv_heads: int, head_dim: int) -> KV:
        """Pages for one layer's keys and values, not filled."""
        ...

    def embedding(self, table: Linear, token_ids: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """The tokens' rows times `scale`, which is first rounded to the dtype."""
        ...

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor: ...

    def logits(self, x: torch.Tensor, head: Linear, *, softcap: float | None = None) -> torch.Tensor:
        """float32 [R, num_tokens]"""
        ...

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor: ...

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Over the last dimension."""
        ...

    def add_rms_norm(
        self, stream: torch.Tensor, update: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(stream + update, its norm)"""
        ...

    def split_heads(self, qkv: torch.Tensor, sizes: Sequence[int], head_dim: int) -> tuple[torch.Tensor, ...]:
        """[T, sum(sizes) * head_dim] into one [T, size, head_dim] for each size."""
        ...

    def rope(
        self, query: torch.Tensor, key: torch.Tensor, batch: Batch, table: RopeTable
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotates each head's first half against its second."""
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
        """Writes `key` and `value` into the pages, then attends over them: [T, heads * head_dim].

        Query head h reads the key-value head h // (heads // kv_heads).
        """
        ...

    def are_finite(self, x: torch.Tensor) -> list[bool]:
        """For each row, whether all its numbers are finite."""
        ...

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, of [T, 2 * n] with the gate first."""
        ...

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gelu(gate) * up with the tanh form of gelu."""
        ...
