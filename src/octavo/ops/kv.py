"""Keys and values of one layer, in pages."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LayerKV:
    """Both tensors are [num_blocks, page_size, kv_heads, head_dim]. A row is garbage until it is written."""

    keys: torch.Tensor
    values: torch.Tensor
