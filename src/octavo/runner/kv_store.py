"""The memory behind the KV pages."""

import torch

from octavo.capacity import KVPlan
from octavo.models.config import ModelConfig
from octavo.ops import LayerKV, Ops


def allocate_kv(config: ModelConfig, plan: KVPlan, ops: Ops) -> list[LayerKV]:
    """One pair of page arrays for each layer.

    Not filled: no row is read before it is written, and main memory that is never touched costs nothing.
    """
    shape = (plan.num_blocks, plan.page_size, config.num_kv_heads, config.head_dim)

    def pages() -> torch.Tensor:
        return torch.empty(shape, dtype=ops.dtype, device=ops.device)

    return [LayerKV(pages(), pages()) for _ in range(config.num_layers)]
