"""What a model calls. One object with the operations of one device and dtype, chosen once."""

import logging

import torch

from octavo.errors import ConfigError
from octavo.kernels import gemm
from octavo.kernels.library import find_library
from octavo.kernels.loading import open_engine
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
    """The operations for weights and activations of `dtype` on `device`.

    `kernels`: "torch", the name of an instruction set, or "auto" for the best there is. `threads` None: one
    for each core that this process may use. `keeps_formats`: quantised weights stay as they are stored, where
    there are kernels for their form.
    """
    device = torch.device(device)
    path = find_library()
    can_be_native = device.type == "cpu" and dtype in gemm.DTYPES
    if kernels == "torch" or (kernels == "auto" and not (can_be_native and path)):
        if kernels == "auto" and can_be_native:
            logger.info("no native kernels were built when Octavo was installed: computing with plain torch")
        return TorchOps(device, dtype)
    if path is None:
        raise ConfigError(
            f"kernels {kernels!r}: no library was built at installation; use --kernels auto or torch"
        )
    if not can_be_native:
        raise ConfigError(f"kernels {kernels!r} do not do {dtype} on {device}; use --kernels auto or torch")
    engine = open_engine(path, kernels, threads)
    # What is left to torch is small, and two pools of threads would fight over the cores.
    torch.set_num_threads(1)
    logger.info("native kernels: %s, %d threads", engine.isa.name.lower(), engine.num_threads)
    return NativeOps(engine, dtype, keeps_formats)
