"""The operations on a CPU by the native kernels. A row's result depends on that row alone, bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import cast

import torch

from octavo.kernels import attention, gemm, rows
from octavo.kernels.attention import KVPages
from octavo.kernels.gemm import PackedMatrix
from octavo.kernels.library import Engine
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
    """Matrices that are stacked: one for all neighbouring parts that are stored in the same form."""

    matrices: tuple[PackedMatrix, ...]
    vector: torch.Tensor | None  # float32
    weights: tuple[WeightTarget, ...]  # of the parts

    @property
    def bias(self) -> WeightTarget | None:
        return None if self.vector is None else TensorTarget(self.vector)


@dataclass(frozen=True)
class NativeOps:
    """See `Ops`, which documents the operations."""

    engine: Engine
    dtype: torch.dtype
    keeps_formats: bool = True  # False: weights are always stored in `dtype`

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def arithmetic(self) -> int:
        return self.engine.library.arithmetic

    @property
    def packing(self) -> Packing:
        return Packing(self.engine.library.layout_version, self.engine.library.checksum)

    def new_sampler(self) -> Sampler:
        return NativeSampler(self.engine)

    def capture(self, forward: Forward, *, page_size: int, max_positions: int) -> Forward:
        return TapedForward(self.engine, forward, page_size=page_size, max_positions=max_positions)

    def kernel_times(self) -> KernelTimes:
        return self.engine.times()

    def new_linear(self, parts: Sequence[LinearPart], in_features: int, *, bias: bool = False) -> Linear:
        stacks: list[tuple[str, list[int]]] = []
        for part in parts:
            form = self._form_of(part.format, in_features)
            # Threads pack whole groups of rows: no two parts may have rows in one.
            if stacks and stacks[-1][0] == form and sum(stacks[-1][1]) % gemm.ROW_GROUP == 0:
                stacks[-1][1].append(part.num_rows)
            else:
                stacks.append((form, [part.num_rows]))
        matrices = [
            PackedMatrix(self.engine.library, sum(sizes), in_features, form) for form, sizes in stacks
        ]
        weights = [cut_rows(matrix, sizes) for matrix, (_, sizes) in zip(matrices, stacks, strict=True)]
        num_rows = sum(part.num_rows for part in parts)
        vector = torch.empty(num_rows, dtype=torch.float32) if bias else None
        return NativeLinear(tuple(matrices), vector, tuple(chain.from_iterable(weights)))

    def _form_of(self, format: str | None, in_features: int) -> str:
        """What the kernels store: the quantised form where they can compute with it."""
        if (
            format is not None
            and self.keeps_formats
            and self.dtype == torch.bfloat16
            and self.engine.library.has_format(format)
            and in_features % FORMATS[format].block_k == 0
        ):
            return format
        return "BF16" if self.dtype == torch.bfloat16 else "F32"

    def new_embedding(self, num_tokens: int, width: int, format: str | None = None) -> Linear:
        return self.new_linear([LinearPart(num_tokens, format)], width)

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
        (matrix,) = cast(NativeLinear, table).matrices
        embedded = gemm.read_rows(self.engine, matrix, token_ids)
        if scale == 1.0:
            return embedded
        return rows.scale(self.engine, embedded, torch.tensor(scale, dtype=self.dtype).item())

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        return self._product(x, cast(NativeLinear, linear), self.dtype)

    def logits(self, x: torch.Tensor, head: Linear, *, softcap: float | None = None) -> torch.Tensor:
        logits = self._product(x, cast(NativeLinear, head), torch.float32)
        return logits if softcap is None else rows.softcap(self.engine, logits, softcap)

    def _product(self, x: torch.Tensor, linear: NativeLinear, out_dtype: torch.dtype) -> torch.Tensor:
        """Each matrix gives some columns of the result."""
        if len(linear.matrices) == 1:
            return gemm.multiply(self.engine, x, linear.matrices[0], linear.vector, out_dtype)
        y = new_rows((len(x), sum(matrix.n for matrix in linear.matrices)), out_dtype)
        first = 0
        for matrix in linear.matrices:
            columns = slice(first, first + matrix.n)
            bias = None if linear.vector is None else linear.vector[columns]
            gemm.multiply(self.engine, x, matrix, bias, out_dtype, out=y[:, columns])
            first += matrix.n
        return y

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
