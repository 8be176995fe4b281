"""Start a worker: select device and dtype, build the model, load its weights, allocate KV blocks."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from octavo.capacity import KVPlan, KVShape, plan_kv
from octavo.checkpoint import Checkpoint
from octavo.checkpoint.load import OnLoaded
from octavo.checkpoint.same_tokens import check_same_tokens
from octavo.config import EngineOptions
from octavo.devices import free_device_memory, resolve_device
from octavo.errors import ConfigError
from octavo.grammar.vocabulary import vocabulary_of
from octavo.kernels.library import usable_cores
from octavo.kernels.shapes import NATIVE_BLOCK, native_problem
from octavo.models.config import ModelConfig
from octavo.models.registry import Model
from octavo.ops import KV, Batch, Forward, Ops, select_ops
from octavo.runner.draft_model import DraftModel
from octavo.runner.kv_store import allocate_kv
from octavo.runner.loaded_model import LoadedModel, load_model
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
    draft_context: int  # how many tokens the draft model can see; 0: there is none


def start_worker(
    checkpoint: Checkpoint,
    options: EngineOptions,
    *,
    progress: bool | None,
    on_loaded: OnLoaded = lambda done, total: None,
    num_engines: int = 1,
    draft_checkpoint: Checkpoint | None = None,
) -> Worker:
    """`num_engines` is how many engines of this server share the cores and the memory of this machine."""
    threads = options.threads or max(1, usable_cores() // num_engines)
    torch.set_num_threads(options.threads or min(threads, torch.get_num_threads()))
    config = ModelConfig.from_huggingface(checkpoint.config)
    configs = [config]
    if draft_checkpoint is not None:
        check_same_tokens(checkpoint, draft_checkpoint)
        configs.append(ModelConfig.from_huggingface(draft_checkpoint.config))
    grammars = SlotGrammars(
        lambda: vocabulary_of(Tokenizer(checkpoint.text), config.vocab_size), config.vocab_size
    )
    ops = select_ops(
        resolve_device(options.device),
        DTYPES[options.dtype_for(checkpoint.config)],
        kernels=_kernels_for(configs, options),
        threads=threads,
        keeps_formats=options.weights == "kept",
    )
    load = partial(
        load_model, ops=ops, options=options, progress=progress, on_loaded=on_loaded, threads=threads
    )
    loaded = load(checkpoint, config)
    draft = None if draft_checkpoint is None else load(draft_checkpoint, configs[1])
    models = [loaded] if draft is None else [loaded, draft]
    # The other engines map the same files, but each has its own copy of what is not mapped.
    copies = (num_engines - 1) * sum(one.unmapped_bytes for one in models)
    free_bytes = free_device_memory(ops.device, sum(one.mapped_bytes for one in models)) - copies
    kv_plan = _plan_memory(configs, ops, options, free_bytes, num_engines)
    for line in kv_plan.explanation:
        logger.info("%s", line)
    kv = allocate_kv(config, kv_plan, ops)
    runner = ModelRunner(
        _forward_pass(loaded.model, ops, kv, kv_plan, taped=options.tape),
        loaded.model.logits,
        ops.new_sampler(),
        ops=ops,
        block_size=kv_plan.block_size,
        max_running=options.max_running,
        grammars=grammars,
        draft_model=None if draft is None else _draft_model(draft, config, ops, kv_plan, options),
    )
    weight_bytes = sum((Counter(one.weight_bytes) for one in models), Counter[str]())
    draft_context = 0 if draft is None else min(draft.config.max_positions, kv_plan.max_model_len)
    return Worker(runner, config, kv_plan, ops, kv, dict(weight_bytes), grammars.prepare, draft_context)


def _draft_model(
    draft: LoadedModel, config: ModelConfig, ops: Ops, kv_plan: KVPlan, options: EngineOptions
) -> DraftModel:
    """`config` is that of the model that verifies the drafts."""
    kv = allocate_kv(draft.config, kv_plan, ops)
    return DraftModel(
        _forward_pass(draft.model, ops, kv, kv_plan, taped=options.tape),
        draft.model.logits,
        ops.new_sampler(),
        ops=ops,
        num_blocks=kv_plan.num_blocks,
        block_size=kv_plan.block_size,
        max_running=options.max_running,
        vocab_size=config.vocab_size,
        num_embeddings=draft.config.vocab_size,
    )


def _forward_pass(model: Model, ops: Ops, kv: Sequence[KV], kv_plan: KVPlan, *, taped: bool) -> Forward:
    @torch.inference_mode()
    def forward(batch: Batch) -> torch.Tensor:
        return model.forward(batch, kv)

    if not taped:
        return forward
    return ops.capture(forward, block_size=kv_plan.block_size, max_positions=kv_plan.max_model_len)


def _kernels_for(configs: Sequence[ModelConfig], options: EngineOptions) -> str:
    """Return the kernels to use: torch where native attention does not work, unless native is required.

    A draft model never changes what the kernels of the large model are, and so its answers.
    """
    problem, *of_draft = [native_problem(options.block_size, config.head_dim) for config in configs]
    if options.kernels != "torch" and problem is None and any(of_draft):
        raise ConfigError(
            f"the draft model cannot use native kernels: {of_draft[0]}; choose another draft model, or use"
            " --kernels torch for both"
        )
    if problem is None or options.kernels == "torch":
        return options.kernels
    if options.kernels != "auto":
        raise ConfigError(
            f"kernels {options.kernels!r} cannot be used: {problem}; use --kernels auto or torch"
        )
    logger.info("using torch instead of native kernels: %s", problem)
    return "torch"


def _plan_memory(
    configs: Sequence[ModelConfig], ops: Ops, options: EngineOptions, free_bytes: int, num_engines: int
) -> KVPlan:
    shape, *others = [
        KVShape(one.num_layers, one.num_kv_heads, one.head_dim, ops.dtype.itemsize) for one in configs
    ]
    return plan_kv(
        shape,
        free_bytes=max(0, free_bytes),
        fraction=options.kv_fraction_on(ops.device.type),
        kv_memory=options.kv_memory,
        block_size=options.block_size,
        block_multiple=NATIVE_BLOCK,
        max_model_len=options.max_model_len,
        model_max_len=configs[0].max_positions,
        draft_shape=others[0] if others else None,
        num_engines=num_engines,
    )
