"""Build a model and load the weights of its checkpoint."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from octavo.checkpoint import Checkpoint
from octavo.checkpoint.load import LoadedWeights, OnLoaded, load_weights
from octavo.checkpoint.packed_cache import PackedCache, default_folder
from octavo.checkpoint.tensors import CHUNK_NUMPY_TYPES
from octavo.config import EngineOptions, format_size
from octavo.models.config import ModelConfig
from octavo.models.registry import Model, build_model
from octavo.models.weights import WeightTarget, bytes_by_format
from octavo.ops import Ops

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    model: Model
    weight_bytes: Mapping[str, int]  # by storage format
    mapped_bytes: int  # of these; the system counts them as available memory

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def unmapped_bytes(self) -> int:
        """What each engine of a machine has a copy of."""
        return max(0, sum(self.weight_bytes.values()) - self.mapped_bytes)


def load_model(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    options: EngineOptions,
    *,
    progress: bool | None,
    on_loaded: OnLoaded,
    threads: int,
) -> LoadedModel:
    model, targets = build_model(config, ops, checkpoint.formats)
    _log_widened(checkpoint, targets, ops, options)
    loading = time.perf_counter()
    weights = load_weights(
        checkpoint,
        targets,
        cache=_weight_cache(ops, options),
        progress=progress,
        on_loaded=on_loaded,
        threads=threads,
    )
    weight_bytes = bytes_by_format(targets, ops.dtype)
    logger.info("weights: %s", ", ".join(f"{format_size(n)} as {form}" for form, n in weight_bytes.items()))
    _log_loaded(checkpoint.name, weights, time.perf_counter() - loading)
    return LoadedModel(model, weight_bytes, weights.mapped_bytes)


def _log_widened(
    checkpoint: Checkpoint, targets: Mapping[str, WeightTarget], ops: Ops, options: EngineOptions
) -> None:
    """Log which quantised matrices take more memory than in the file, and why."""
    widened = [
        tensor
        for name, target in targets.items()
        if target.format is None
        and len(target.shape) > 1
        and (tensor := checkpoint.tensors.get(name)) is not None
        and tensor.source_dtype not in CHUNK_NUMPY_TYPES
    ]
    if not widened:
        return
    if options.weights == "widened":
        reason = "as requested"
    elif ops.dtype != torch.bfloat16:
        reason = "quantised weights are kept with --dtype bfloat16 only"
    else:
        reason = "there are no kernels for them here"
    logger.info(
        "widened to %s, %s: %s, %s in the file and %s in memory",
        str(ops.dtype).removeprefix("torch."),
        reason,
        ", ".join(sorted({tensor.source_dtype for tensor in widened})),
        format_size(sum(tensor.nbytes for tensor in widened)),
        format_size(sum(prod(tensor.shape) for tensor in widened) * ops.dtype.itemsize),
    )


def _weight_cache(ops: Ops, options: EngineOptions) -> PackedCache | None:
    """Return the cache of packed weights; None if it is disabled, or weights are not packed."""
    if not options.weight_cache_size or ops.packing is None:
        return None
    return PackedCache(
        default_folder() / "packed",
        options.weight_cache_size,
        ops.packing.checksum,
        layout_version=ops.packing.layout_version,
    )


def _log_loaded(name: str, weights: LoadedWeights, seconds: float) -> None:
    if weights.from_cache:
        logger.info(
            "weights of %s mapped from the cache in %.1f s (%s)",
            name,
            seconds,
            format_size(weights.mapped_bytes),
        )
    else:
        kept = " and kept for the next start" if weights.mapped_bytes else ""
        logger.info("weights of %s loaded in %.1f s%s", name, seconds, kept)
