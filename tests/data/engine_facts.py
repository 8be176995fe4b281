"""What an engine says of itself, for tests that have none."""

import msgspec

from octavo.protocol import EngineFacts, EngineStats

FACTS = EngineFacts(
    vocab_size=260,
    max_model_len=8192,
    block_size=32,
    num_blocks=1000,
    device="none",
    dtype="none",
    explanation=(),
    kv_bytes=0,
    system_fingerprint="",
)

IDLE_STATS = EngineStats(
    num_running=0,
    num_waiting=0,
    blocks_total=1000,
    blocks_free=1000,
    blocks_cached=0,
    steps=0,
    tokens_computed=0,
    prompt_tokens=0,
    prompt_tokens_cached=0,
    tokens_sampled=0,
    preemptions=0,
)


def engine_facts(**changes: object) -> EngineFacts:
    return msgspec.structs.replace(FACTS, **changes)
