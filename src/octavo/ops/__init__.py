"""What a model calls. One object with the operations of one device and dtype, chosen once."""

import torch

from octavo.ops.batch import Batch, BatchSequence
from octavo.ops.interface import AttentionSpec, Linear, Ops, WeightTarget
from octavo.ops.kv import LayerKV
from octavo.ops.parameters import Norm
from octavo.ops.rope import RopeTable
from octavo.ops.torch_ops import TorchOps

__all__ = [
    "AttentionSpec",
    "Batch",
    "BatchSequence",
    "LayerKV",
    "Linear",
    "Norm",
    "Ops",
    "RopeTable",
    "WeightTarget",
    "select_ops",
]


def select_ops(device: torch.device | str, dtype: torch.dtype) -> Ops:
    """The operations for weights and activations of `dtype` on `device`."""
    return TorchOps(torch.device(device), dtype)
