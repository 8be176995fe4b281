"""What a model calls. One object with the operations of one device and dtype, chosen once."""

import logging

import torch

from octavo.errors import ConfigError
from octavo.kernels import gemm
from octavo.kernels.library import Engine, Isa, find_library, usable_cores
from octavo.kernels.loading import load_kernels
from octavo.ops.batch import Batch, BatchSequence
from octavo.ops.interface import AttentionSpec, Linear, Ops, WeightTarget
from octavo.ops.kv import KV, LayerKV
from octavo.ops.native_ops import NativeOps
from octavo.ops.parameters import Norm
from octavo.ops.rope import RopeTable
from octavo.ops.taped_forward import TapedForward
from octavo.ops.torch_ops import TorchOps

__all__ = [
    "KV",
    "AttentionSpec",
    "Batch",
    "BatchSequence",
    "LayerKV",
    "Linear",
    "NativeOps",
    "Norm",
    "Ops",
    "RopeTable",
    "TapedForward",
    "WeightTarget",
    "select_ops",
]


logger = logging.getLogger(__name__)


def select_ops(
    device: torch.device | str, dtype: torch.dtype, *, kernels: str = "torch", threads: int | None = None
) -> Ops:
    """The operations for weights and activations of `dtype` on `device`.

    `kernels`: "torch", the name of an instruction set, or "auto" for the best there is. `threads` None: one
    for each core that this process may use.
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
    library = load_kernels(path)
    isa = library.best_isa if kernels == "auto" else Isa[kernels.upper()]
    if isa > library.best_isa:
        raise ConfigError(f"this processor has no {kernels}; its best is {library.best_isa.name.lower()}")
    num_threads = threads or usable_cores()
    torch.set_num_threads(
        1
    )  # what is left to torch is small, and two pools of threads would fight over the cores
    logger.info("native kernels: %s, %d threads", isa.name.lower(), num_threads)
    return NativeOps(Engine(library, num_threads, isa), dtype)
