"""Keys and values of one layer, in pages."""

from dataclasses import dataclass

import torch

from octavo.kernels.attention import KVPages


@dataclass(frozen=True)
class LayerKV:
    """Both tensors are [num_blocks, page_size, kv_heads, head_dim]. A row is garbage until it is written."""

    keys: torch.Tensor
    values: torch.Tensor


KV = LayerKV | KVPages  # whichever the operations made; a model only passes it on
