"""The operations in plain torch, on any device: the reference for every other backend."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F

from octavo import version
from octavo.ops.batch import Batch
from octavo.ops.interface import AttentionSpec, Forward, Linear, LinearPart, WeightTarget
from octavo.ops.kv import KV, LayerKV
from octavo.ops.parameters import Norm, TensorTarget
from octavo.ops.rope import RopeTable
from octavo.ops.row_range import cut_rows
from octavo.ops.torch_attention import attend_blocks
from octavo.sampling import Sampler, TorchSampler


@dataclass(frozen=True)
class TorchLinear:
    matrix: torch.Tensor
    vector: torch.Tensor | None
    weights: tuple[WeightTarget, ...]  # parts of the matrix

    @property
    def bias(self) -> TensorTarget | None:
        return None if self.vector is None else TensorTarget(self.vector)


@dataclass(frozen=True)
class TorchOps:
    """See `Ops`, which documents the operations."""

    device: torch.device
    dtype: torch.dtype

    @property
    def arithmetic(self) -> Mapping[str, object]:
        """The arithmetic has no definition: results depend on this build and this machine."""
        return {
            "octavo": version.__version__,  # the order of its calls to torch may change between versions
            "torch": torch.__version__,
            "torch_instructions": torch.backends.cpu.get_cpu_capability(),
            "device": self.device.type,
            "libc": platform.libc_ver(),  # torch calls it for functions that it does not vectorise itself
        }

    @property
    def packing(self) -> None:
        return None

    def new_sampler(self) -> Sampler:
        return TorchSampler()

    def capture(self, forward: Forward, *, block_size: int, max_positions: int) -> Forward:
        return forward

    def kernel_times(self) -> None:
        return None

    def new_linear(self, parts: Sequence[LinearPart], in_features: int, *, bias: bool = False) -> Linear:
        sizes = [part.num_rows for part in parts]
        matrix = torch.empty(sum(sizes), in_features, dtype=self.dtype, device=self.device)
        vector = torch.empty(sum(sizes), dtype=self.dtype, device=self.device) if bias else None
        return TorchLinear(matrix, vector, cut_rows(TensorTarget(matrix), sizes))

    def new_embedding(self, num_tokens: int, width: int, format: str | None = None) -> Linear:
        return self.new_linear([LinearPart(num_tokens, format)], width)

    def new_norm(self, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        return Norm(torch.empty(size, dtype=torch.float32, device=self.device), eps, offset)

    def new_rope(self, inverse_frequencies: torch.Tensor) -> RopeTable:
        return RopeTable(partial(_angles, inverse_frequencies, device=self.device))

    def new_kv(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> KV:
        # Uninitialised: no row is read before it is written, and untouched memory costs nothing.
        keys, values = (
            torch.empty(num_blocks, block_size, kv_heads, head_dim, dtype=self.dtype, device=self.device)
            for _ in range(2)
        )
        return LayerKV(keys, values)

    def embedding(self, table: Linear, token_ids: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        rows = F.embedding(token_ids, cast(TorchLinear, table).matrix)
        return rows * torch.tensor(scale, dtype=self.dtype).item()

    def linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        stored = cast(TorchLinear, linear)
        return F.linear(x, stored.matrix, stored.vector)

    def logits(self, x: torch.Tensor, head: Linear, *, softcap: float | None = None) -> torch.Tensor:
        logits = self.linear(x, head).float()
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def rms_norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm.eps)
        return (normed * norm.gain).to(x.dtype)

    def add_rms_norm(
        self, stream: torch.Tensor, update: torch.Tensor, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        stream = stream + update
        return stream, self.rms_norm(stream, norm)

    def split_heads(self, qkv: torch.Tensor, sizes: Sequence[int], head_dim: int) -> tuple[torch.Tensor, ...]:
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        return torch.split(heads, list(sizes), dim=1)

    def rope(
        self, query: torch.Tensor, key: torch.Tensor, batch: Batch, table: RopeTable
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (rows[batch.positions].unsqueeze(1) for rows in table.cos_sin(batch.num_positions))
        return _rotate(query, cos, sin), _rotate(key, cos, sin)

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
        blocks = cast(LayerKV, kv)
        rows = batch.kv_slots // batch.block_size, batch.kv_slots % batch.block_size
        blocks.keys[rows] = key.to(blocks.keys.dtype)
        blocks.values[rows] = value.to(blocks.values.dtype)
        return attend_blocks(query, batch, blocks, spec).flatten(1)

    def are_finite(self, x: torch.Tensor) -> list[bool]:
        return torch.isfinite(x).all(dim=-1).tolist()

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def geglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)


def _angles(
    inverse_frequencies: torch.Tensor, first_position: int, num_positions: int, *, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the angles on the CPU, so that they are the same for every device."""
    positions = torch.arange(first_position, first_position + num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies).double()
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
