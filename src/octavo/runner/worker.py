"""Start a worker: select device and dtype, build the model, load its weights, allocate KV blocks."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from octavo.capacity import KVPlan, KVShape, plan_kv
from octavo.checkpoint import Checkpoint
from octavo.checkpoint.load import LoadedWeights, OnLoaded, load_weights
from octavo.checkpoint.packed_cache import PackedCache, default_folder
from octavo.checkpoint.tensors import CHUNK_NUMPY_TYPES
from octavo.config import EngineOptions, format_size
from octavo.devices import free_device_memory, resolve_device
from octavo.errors import ConfigError
from octavo.grammar.vocabulary import vocabulary_of
from octavo.kernels.library import usable_cores
from octavo.kernels.shapes import NATIVE_BLOCK, native_problem
from octavo.models.config import ModelConfig
from octavo.models.registry import Model, build_model
from octavo.models.weights import WeightTarget, bytes_by_format
from octavo.ops import KV, Batch, Forward, Ops, select_ops
from octavo.runner.kv_store import allocate_kv
from octavo.runner.model_runner import ModelRunner
from octavo.runner.slot_grammars import SlotGrammars
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Worker:
    runner: ModelRunner
    config: ModelConfig
    kv_plan: KVPlan
    ops: Ops
    kv: Sequence[KV]  # of each layer
    weight_bytes: dict[str, int]  # by storage format
    prepare: Callable[[bool], None]  # starts making what grammars need; True: waits until done


def start_worker(
    checkpoint: Checkpoint,
    options: EngineOptions,
    *,
    progress: bool | None,
    on_loaded: OnLoaded = lambda done, total: None,
    num_engines: int = 1,
) -> Worker:
    """`num_engines` is how many engines of this server share the cores and the memory of this machine."""
    threads = options.threads or max(1, usable_cores() // num_engines)
    torch.set_num_threads(options.threads or min(threads, torch.get_num_threads()))
    config = ModelConfig.from_huggingface(checkpoint.config)
    grammars = SlotGrammars(
        lambda: vocabulary_of(Tokenizer(checkpoint.text), config.vocab_size), config.vocab_size
    )
    device = resolve_device(options.device)
    ops = select_ops(
        device,
        DTYPES[options.dtype_for(checkpoint.config)],
        kernels=_kernels_for(config, options),
        threads=threads,
        keeps_formats=options.weights == "kept",
    )
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
    # The other engines map the same file, but each has its own copy of what is not mapped.
    copies = (num_engines - 1) * max(0, sum(weight_bytes.values()) - weights.mapped_bytes)
    free_bytes = free_device_memory(ops.device, weights.mapped_bytes) - copies
    kv_plan = _plan_memory(config, ops, options, free_bytes, num_engines)
    for line in kv_plan.explanation:
        logger.info("%s", line)
    kv = allocate_kv(config, kv_plan, ops)
    runner = ModelRunner(
        _forward_pass(model, ops, kv, kv_plan, taped=options.tape),
        model.logits,
        ops.new_sampler(),
        ops=ops,
        block_size=kv_plan.block_size,
        max_running=options.max_running,
        grammars=grammars,
    )
    return Worker(runner, config, kv_plan, ops, kv, weight_bytes, grammars.prepare)


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


def _forward_pass(model: Model, ops: Ops, kv: Sequence[KV], kv_plan: KVPlan, *, taped: bool) -> Forward:
    @torch.inference_mode()
    def forward(batch: Batch) -> torch.Tensor:
        return model.forward(batch, kv)

    if not taped:
        return forward
    return ops.capture(forward, block_size=kv_plan.block_size, max_positions=kv_plan.max_model_len)


def _kernels_for(config: ModelConfig, options: EngineOptions) -> str:
    """Return the kernels to use: torch where native attention does not work, unless native is required."""
    problem = native_problem(options.block_size, config.head_dim)
    if problem is None or options.kernels == "torch":
        return options.kernels
    if options.kernels != "auto":
        raise ConfigError(
            f"kernels {options.kernels!r} cannot be used: {problem}; use --kernels auto or torch"
        )
    logger.info("using torch instead of native kernels: %s", problem)
    return "torch"


def _plan_memory(
    config: ModelConfig, ops: Ops, options: EngineOptions, free_bytes: int, num_engines: int
) -> KVPlan:
    return plan_kv(
        KVShape(config.num_layers, config.num_kv_heads, config.head_dim, ops.dtype.itemsize),
        free_bytes=max(0, free_bytes),
        fraction=options.kv_fraction_on(ops.device.type),
        kv_memory=options.kv_memory,
        block_size=options.block_size,
        block_multiple=NATIVE_BLOCK,
        max_model_len=options.max_model_len,
        model_max_len=config.max_positions,
        num_engines=num_engines,
    )
