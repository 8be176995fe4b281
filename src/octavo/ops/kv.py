"""The keys and values of one layer, in blocks."""

from dataclasses import dataclass

import torch

from octavo.kernels.attention import KVBlocks


@dataclass(frozen=True)
class LayerKV:
    """Both tensors are [num_blocks, block_size, kv_heads, head_dim]. Rows are undefined until written."""

    keys: torch.Tensor
    values: torch.Tensor


KV = LayerKV | KVBlocks  # made by the operations; a model only passes it on
