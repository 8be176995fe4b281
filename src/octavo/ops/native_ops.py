"""The operations on a CPU with the native kernels. Every bit of a row's result depends on that row alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import cast

import torch

from octavo.kernels import attention, gemm, rows
from octavo.kernels.attention import KVBlocks
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import KernelPool
from octavo.kernels.rows import Activation
from octavo.kernels.spread import new_rows
from octavo.ops.batch import Batch
from octavo.ops.interface import AttentionSpec, Forward, Linear, LinearPart, Packing, WeightTarget
from octavo.ops.kv import KV
from octavo.ops.parameters import Norm, TensorTarget
from octavo.ops.rope import RopeTable
from octavo.ops.row_range import cut_rows
from octavo.ops.taped_forward import TapedForward
from octavo.protocol import KernelTimes
from octavo.sampling import NativeSampler, Sampler
from octavo.weight_format import FORMATS


@dataclass(frozen=True)
class NativeLinear:
    """Stacked matrices: neighbouring parts with the same format share one matrix."""

    matrices: tuple[PackedMatrix, ...]
    vector: torch.Tensor | None  # float32
    weights: tuple[WeightTarget, ...]  # one per part

    @property
    def bias(self) -> WeightTarget | None:
        return None if self.vector is None else TensorTarget(self.vector)


@dataclass(frozen=True)
class NativeOps:
    """See `Ops`, which documents the operations."""

    pool: KernelPool
    dtype: torch.dtype
    keeps_formats: bool = True  # False: weights are always stored in `dtype`

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def arithmetic(self) -> int:
        return self.pool.library.arithmetic

    @property
    def packing(self) -> Packing:
        return Packing(self.pool.library.layout_version, self.pool.library.checksum)

    def new_sampler(self) -> Sampler:
        return NativeSampler(self.pool)

    def capture(self, forward: Forward, *, block_size: int, max_positions: int) -> Forward:
        return TapedForward(self.pool, forward, block_size=block_size, max_positions=max_positions)

    def kernel_times(self) -> KernelTimes:
        return self.pool.times()

    def new_linear(self, parts: Sequence[LinearPart], in_features: int, *, bias: bool = False) -> Linear:
        stacks: list[tuple[str, list[int]]] = []
        for part in parts:
            stored = self._stored_format(part.format, in_features)
            # Threads pack whole groups of rows, so two parts must not share a group.
            if stacks and stacks[-1][0] == stored and sum(stacks[-1][1]) % gemm.ROW_GROUP == 0:
                stacks[-1][1].append(part.num_rows)
            else:
                stacks.append((stored, [part.num_rows]))
        library = self.pool.library
        matrices = [PackedMatrix(library, sum(sizes), in_features, stored) for stored, sizes in stacks]
        weights = [cut_rows(matrix, sizes) for matrix, (_, sizes) in zip(matrices, stacks, strict=True)]
        num_rows = sum(part.num_rows for part in parts)
        vector = torch.empty(num_rows, dtype=torch.float32) if bias else None
        return NativeLinear(tuple(matrices), vector, tuple(chain.from_iterable(weights)))

    def _stored_format(self, format: str | None, in_features: int) -> str:
        """Return `format` if the kernels can compute with it, else the name of the dtype."""
        if (
            format is not None
            and self.keeps_formats
            and self.dtype == torch.bfloat16
            and self.pool.library.has_format(format)
            and in_features % FORMATS[format].block_k == 0
        ):
            return format
        return "BF16" if self.dtype == torch.bfloat16 else "F32"

    def new_embedding(self, num_tokens: int, width: int, format: str | None = None) -> Linear:
        return self.new_linear([LinearPart(num_tokens, format)], width)

    def new_norm(self, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        return Norm(torch.empty(size, dtype=torch.float32), eps, offset)

    def new_rope(self, inverse_frequencies: torch.Tensor) -> RopeTable:
        return RopeTable(partial(rows.rope_angles, self.pool, inverse_frequencies))

    def new_kv(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> KV:
        return KVBlocks(
            self.pool.library,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=self.dtype,
        )

    def embedding(self, table: Linear, token_ids: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        (matrix,) = cast(NativeLinear, table).matrices
        embedded = gemm.read_rows(self.pool, matrix, token_ids)
        if scale == 1.0:
            return embedded
        return rows.scale(self.pool, embedded, torch.tensor(scale, dtype=self.dtype).item())

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return self._product(x, cast(NativeLinear, linear), self.dtype)

    def logits(self, x: torch.Tensor, head: Linear, *, softcap: float | None = None) -> torch.Tensor:
        logits = self._product(x, cast(NativeLinear, head), torch.float32)
        return logits if softcap is None else rows.softcap(self.pool, logits, softcap)

    def _product(self, x: torch.Tensor, linear: NativeLinear, out_dtype: torch.dtype) -> torch.Tensor:
        """Multiply by all matrices. Each one computes some columns of the result."""
        if len(linear.matrices) == 1:
            return gemm.multiply(self.pool, x, linear.matrices[0], linear.vector, out_dtype)
        y = new_rows((len(x), sum(matrix.n for matrix in linear.matrices)), out_dtype)
        first = 0
        for matrix in linear.matrices:
            columns = slice(first, first + matrix.n)
            bias = None if linear.vector is None else linear.vector[columns]
            gemm.multiply(self.pool, x, matrix, bias, out_dtype, out=y[:, columns])
            first += matrix.n
        return y

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return rows.add(self.pool, a, b)

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        return rows.rms_norm(self.pool, x, norm.gain, norm.eps)

    def add_rms_norm(
        self, stream: torch.Tensor, update: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return rows.add_rms_norm(self.pool, stream, update, norm.gain, norm.eps)

    def split_heads(self, qkv: torch.Tensor, sizes: Sequence[int], head_dim: int) -> tuple[torch.Tensor, ...]:
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        return torch.split(heads, list(sizes), dim=1)

    def rope(
        self, query: torch.Tensor, key: torch.Tensor, batch: Batch, table: RopeTable
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cosines, sines = table.cos_sin(batch.num_positions)
        return (
            rows.rope(self.pool, query, batch.positions, cosines, sines),
            rows.rope(self.pool, key, batch.positions, cosines, sines),
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
        blocks = cast(KVBlocks, kv)
        attention.write_kv(self.pool, blocks, key, value, batch.kv_slots)
        attended = attention.attend(
            self.pool,
            blocks,
            query,
            batch.table,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
        )
        return attended.flatten(1)

    def are_finite(self, x: torch.Tensor) -> list[bool]:
        return rows.are_finite(self.pool, x)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return rows.gated(self.pool, gate_up, Activation.SILU)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return rows.gated(self.pool, gate_up, Activation.GELU)
