"""The memory behind the KV blocks."""

from octavo.capacity import KVPlan
from octavo.models.config import ModelConfig
from octavo.ops import KV, Ops


def allocate_kv(config: ModelConfig, plan: KVPlan, ops: Ops) -> list[KV]:
    """Allocate the KV blocks of each layer."""
    return [
        ops.new_kv(plan.num_blocks, plan.block_size, config.num_kv_heads, config.head_dim)
        for _ in range(config.num_layers)
    ]
