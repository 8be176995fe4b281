"""Build an engine from a checkpoint and options."""

import time
from collections.abc import Callable

from octavo.cache import KVManager
from octavo.checkpoint import Checkpoint, open_checkpoint
from octavo.config import EngineOptions
from octavo.drafting import speculation_for
from octavo.engine.core import EngineCore, Execute
from octavo.engine.fingerprint import system_fingerprint
from octavo.kernels.prefix_index import block_hasher
from octavo.protocol import EngineFacts
from octavo.runner import start_worker
from octavo.schedule import UNLIMITED, AdmissionPolicy, Scheduler, SchedulerConfig


def build_engine(
    checkpoint: Checkpoint,
    options: EngineOptions,
    *,
    progress: bool | None,
    on_loaded: Callable[[int, int], None] = lambda done, total: None,
    around_execute: Callable[[Execute], Execute] = lambda execute: execute,
    num_engines: int = 1,
    draft_checkpoint: Checkpoint | None = None,
) -> tuple[EngineCore, EngineFacts]:
    """Load the model and return an engine and its facts.

    `progress`: show a bar on stderr. `on_loaded` gets the bytes of weights read so far, and in total.
    `around_execute` wraps the function that executes plans, to observe it. `num_engines` is how many engines
    of this server share the machine. `draft_checkpoint`: from `open_draft_checkpoint`.
    """
    worker = start_worker(
        checkpoint,
        options,
        progress=progress,
        on_loaded=on_loaded,
        num_engines=num_engines,
        draft_checkpoint=draft_checkpoint,
    )
    plan = worker.kv_plan
    fingerprint = system_fingerprint(checkpoint, worker.ops)
    kv = KVManager(
        plan.num_blocks,
        plan.block_size,
        prefix_caching=options.prefix_caching,
        key_maker=block_hasher(fingerprint, plan.block_size),
    )
    scheduler = Scheduler(
        _scheduler_config(options, plan.max_model_len, worker.draft_context),
        kv,
        # Only native kernels have an arithmetic with a version number, in which rows are independent.
        speculation_for(options.speculate, has_exact_rows=isinstance(worker.ops.arithmetic, int)),
    )
    facts = EngineFacts(
        vocab_size=worker.config.vocab_size,
        max_model_len=plan.max_model_len,
        block_size=plan.block_size,
        num_blocks=plan.num_blocks,
        device=str(worker.ops.device),
        dtype=str(worker.ops.dtype).removeprefix("torch."),
        explanation=plan.explanation,
        kv_bytes=plan.num_bytes,
        weight_bytes=worker.weight_bytes,
        prompt_credit=scheduler.config.prompt_credit,
        has_prefixes=kv.has_journal,
        system_fingerprint=fingerprint,
    )
    execute = around_execute(worker.runner.execute)
    core = EngineCore(scheduler, execute, time.monotonic, worker.ops.kernel_times, worker.prepare)
    return core, facts


def open_draft_checkpoint(options: EngineOptions) -> Checkpoint | None:
    return None if options.draft_model is None else open_checkpoint(options.draft_model)


def _scheduler_config(options: EngineOptions, max_model_len: int, draft_context: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_running=options.max_running,
        max_model_len=max_model_len,
        max_step_tokens=options.max_step_tokens or UNLIMITED,
        admission=AdmissionPolicy(options.admission),
        max_draft_tokens=options.draft_tokens,
        draft_context=draft_context,
    )
