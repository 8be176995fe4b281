"""An engine process whose model computes nothing: `python -m octavo.simulate.null_engine FOLDER PARENT`.

Engine loop, scheduler, cache and wire protocol are the real ones. It measures the cost of everything except
the model. The token at position p of any sequence is FIRST_TOKEN + p % NUM_TOKENS, so answers can be checked.
"""

import sys
import time
from typing import Any

from octavo.cache import KVManager
from octavo.engine.core import EngineCore
from octavo.engine.loop import Around, run_engine
from octavo.kernels.prefix_index import block_hasher
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import HeartbeatFile
from octavo.plan import SliceResult, StepPlan, StepResult
from octavo.protocol import EngineFacts
from octavo.schedule import Scheduler, SchedulerConfig

FINGERPRINT = "null"
BLOCK_SIZE = 32
MAX_STEP_TOKENS = 2048
NUM_BLOCKS = 100_000
FIRST_TOKEN = 64
NUM_TOKENS = 128
DEFAULTS: dict[str, Any] = {
    "vocab_size": 49152,
    "max_running": 256,
    "max_model_len": 8192,
    "step_seconds": 0.0,
}

DRAWN = tuple([SliceResult((FIRST_TOKEN + number,)) for number in range(NUM_TOKENS)])
NOTHING = SliceResult()


def start_null_engine(
    settings: EngineSettings, heartbeat: HeartbeatFile, around: Around
) -> tuple[EngineCore, EngineFacts]:
    """Create the engine. `settings.options` may contain the keys of `DEFAULTS`; others are ignored."""
    options = DEFAULTS | settings.options
    step_seconds = options["step_seconds"]

    def execute(plan: StepPlan) -> StepResult:
        if step_seconds:
            time.sleep(step_seconds)
        return StepResult(
            tuple(
                [
                    DRAWN[(piece.start + len(piece.token_ids)) % NUM_TOKENS] if piece.num_sampled else NOTHING
                    for piece in plan.slices
                ]
            )
        )

    config = SchedulerConfig(
        options["max_running"], options["max_model_len"], max_step_tokens=MAX_STEP_TOKENS
    )
    kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, key_maker=block_hasher(FINGERPRINT, BLOCK_SIZE))
    scheduler = Scheduler(config, kv)
    facts = facts_without_model(config, kv, options["vocab_size"], FINGERPRINT)
    return EngineCore(scheduler, around(execute), time.monotonic), facts


def facts_without_model(
    config: SchedulerConfig, kv: KVManager, vocab_size: int, fingerprint: str
) -> EngineFacts:
    """Return the facts of an engine with this scheduler and cache, and no model."""
    return EngineFacts(
        vocab_size=vocab_size,
        max_model_len=config.max_model_len,
        block_size=kv.block_size,
        num_blocks=kv.pool.num_total,
        device="none",
        dtype="none",
        explanation=(),
        kv_bytes=0,
        prompt_credit=config.prompt_credit,
        has_prefixes=kv.has_journal,
        system_fingerprint=fingerprint,
    )


if __name__ == "__main__":
    sys.exit(run_engine(sys.argv[1:], start_null_engine))
