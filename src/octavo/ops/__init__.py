"""The operations that models call: one object per device and dtype, selected once."""

import logging

import torch

from octavo.errors import ConfigError
from octavo.kernels import gemm
from octavo.kernels.library import find_library
from octavo.kernels.loading import open_pool
from octavo.ops.batch import Batch, BatchSequence
from octavo.ops.interface import (
    AttentionSpec,
    Forward,
    Linear,
    LinearPart,
    Ops,
    WeightStorage,
    WeightTarget,
)
from octavo.ops.kv import KV, LayerKV
from octavo.ops.native_ops import NativeOps
from octavo.ops.parameters import Norm
from octavo.ops.rope import RopeTable
from octavo.ops.torch_ops import TorchOps

__all__ = [
    "KV",
    "AttentionSpec",
    "Batch",
    "BatchSequence",
    "Forward",
    "LayerKV",
    "Linear",
    "LinearPart",
    "NativeOps",
    "Norm",
    "Ops",
    "RopeTable",
    "WeightStorage",
    "WeightTarget",
    "select_ops",
]


logger = logging.getLogger(__name__)


def select_ops(
    device: torch.device | str,
    dtype: torch.dtype,
    *,
    kernels: str = "torch",
    threads: int | None = None,
    keeps_formats: bool = True,
) -> Ops:
    """Return the operations for weights and activations of `dtype` on `device`.

    `kernels`: "torch", the name of an instruction set, or "auto" for the best available. `threads` None: one
    per usable core. `keeps_formats`: quantised weights stay in their format if there are kernels for it.
    """
    device = torch.device(device)
    path = find_library()
    can_be_native = device.type == "cpu" and dtype in gemm.DTYPES
    if kernels == "torch" or (kernels == "auto" and not (can_be_native and path)):
        if kernels == "auto" and can_be_native:
            logger.info("using torch: no native kernels were built when Octavo was installed")
        return TorchOps(device, dtype)
    if path is None:
        raise ConfigError(
            f"kernels {kernels!r}: no library was built during installation; use --kernels auto or torch"
        )
    if not can_be_native:
        raise ConfigError(
            f"kernels {kernels!r} do not support {dtype} on {device}; use --kernels auto or torch"
        )
    pool = open_pool(path, kernels, threads)
    # Little work is left for torch, and two thread pools would compete for the cores.
    torch.set_num_threads(1)
    logger.info("native kernels: %s, %d threads", pool.isa.name.lower(), pool.num_threads)
    return NativeOps(pool, dtype, keeps_formats)
