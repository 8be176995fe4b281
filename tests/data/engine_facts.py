"""What an engine says of itself, for tests that have none."""

import msgspec

from octavo.protocol import EngineFacts

FACTS = EngineFacts(
    vocab_size=260,
    max_model_len=8192,
    page_size=32,
    num_pages=1000,
    device="none",
    dtype="none",
    explanation=(),
    kv_bytes=0,
    system_fingerprint="",
)


def engine_facts(**changes: object) -> EngineFacts:
    return msgspec.structs.replace(FACTS, **changes)
