"""The operations on a CPU by the native kernels. A row's result depends on that row alone, bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from octavo.kernels import attention, gemm, rows
from octavo.kernels.attention import KVPages
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import Engine
from octavo.kernels.rows import Activation
from octavo.ops.batch import Batch
from octavo.ops.interface import AttentionSpec, Forward, Linear, WeightTarget
from octavo.ops.kv import KV
from octavo.ops.parameters import Norm, TensorTarget
from octavo.ops.rope import RopeTable
from octavo.ops.taped_forward import TapedForward
from octavo.protocol import KernelTimes
from octavo.sampling import NativeSampler, Sampler


@dataclass(frozen=True)
class NativeLinear:
    matrix: PackedMatrix
    vector: torch.Tensor | None  # float32

    @property
    def weight(self) -> WeightTarget:
        return self.matrix

    @property
    def bias(self) -> WeightTarget | None:
        return None if self.vector is None else TensorTarget(self.vector)


@dataclass(frozen=True)
class NativeOps:
    """See `Ops`, which documents the operations."""

    engine: Engine
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def arithmetic(self) -> int:
        return self.engine.library.arithmetic

    def new_sampler(self) -> Sampler:
        return NativeSampler(self.engine)

    def capture(self, forward: Forward, *, page_size: int, max_positions: int) -> Forward:
        return TapedForward(self.engine, forward, page_size=page_size, max_positions=max_positions)

    def kernel_times(self) -> KernelTimes:
        return self.engine.times()

    def new_linear(self, out_features: int, in_features: int, *, bias: bool = False) -> Linear:
        matrix = PackedMatrix(self.engine.library, out_features, in_features, self.dtype)
        return NativeLinear(matrix, torch.empty(out_features, dtype=torch.float32) if bias else None)

    def new_embedding(self, num_tokens: int, width: int) -> Linear:
        return self.new_linear(num_tokens, width)

    def new_norm(self, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        return Norm(torch.empty(size, dtype=torch.float32), eps, offset)

    def new_rope(self, inverse_frequencies: torch.Tensor) -> RopeTable:
        return RopeTable(partial(rows.rope_angles, self.engine, inverse_frequencies))

    def new_kv(self, num_blocks: int, page_size: int, kv_heads: int, head_dim: int) -> KV:
        return KVPages(
            self.engine.library,
            num_blocks=num_blocks,
            page_size=page_size,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=self.dtype,
        )

    def embedding(self, table: Linear, token_ids: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        embedded = gemm.read_rows(self.engine, cast(NativeLinear, table).matrix, token_ids)
        if scale == 1.0:
            return embedded
        return rows.scale(self.engine, embedded, torch.tensor(scale, dtype=self.dtype).item())

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        stored = cast(NativeLinear, linear)
        return gemm.multiply(self.engine, x, stored.matrix, stored.vector, self.dtype)

    def logits(self, x: torch.Tensor, head: Linear, *, softcap: float | None = None) -> torch.Tensor:
        stored = cast(NativeLinear, head)
        logits = gemm.multiply(self.engine, x, stored.matrix, stored.vector, torch.float32)
        return logits if softcap is None else rows.softcap(self.engine, logits, softcap)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return rows.add(self.engine, a, b)

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        return rows.rms_norm(self.engine, x, norm.gain, norm.eps)

    def add_rms_norm(
        self, stream: torch.Tensor, update: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return rows.add_rms_norm(self.engine, stream, update, norm.gain, norm.eps)

    def split_heads(self, qkv: torch.Tensor, sizes: Sequence[int], head_dim: int) -> tuple[torch.Tensor, ...]:
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        return torch.split(heads, list(sizes), dim=1)

    def rope(
        self, query: torch.Tensor, key: torch.Tensor, batch: Batch, table: RopeTable
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = table.cos_sin(batch.num_positions)
        return (
            rows.rope(self.engine, query, batch.positions, cosines, sines),
            rows.rope(self.engine, key, batch.positions, cosines, sines),
        )

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
        pages = cast(KVPages, kv)
        attention.write_kv(self.engine, pages, key, value, batch.kv_slots)
        attended = attention.attend(
            self.engine,
            pages,
            query,
            batch.table,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
        )
        return attended.flatten(1)

    def are_finite(self, x: torch.Tensor) -> list[bool]:
        return rows.are_finite(self.engine, x)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return rows.gated(self.engine, gate_up, Activation.SILU)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return rows.gated(self.engine, gate_up, Activation.GELU)
