"""`system_fingerprint`: one short word for everything numeric that stands behind an answer.

With the same fingerprint, the same request (token ids, parameters, seed) has the same answer. Whatever must
not change an answer is not in it: threads, page size, limits of batches and steps, the cache, the tape; with
native kernels, the processor and its instructions.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

import llguidance

from octavo.checkpoint import Checkpoint
from octavo.checkpoint.identity import identity
from octavo.ops import Ops

DIGITS = 12


def system_fingerprint(checkpoint: Checkpoint, ops: Ops) -> str:
    """`fp_` and twelve hexadecimal digits."""
    facts = {"checkpoint": identity(checkpoint), "numerics": numeric_settings(checkpoint, ops)}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return "fp_" + hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]


def numeric_settings(checkpoint: Checkpoint, ops: Ops) -> Mapping[str, Any]:
    """What decides the bits of an answer, the checkpoint's content aside."""
    settings: dict[str, Any] = {
        "arithmetic": ops.arithmetic,
        "dtype": str(ops.dtype),
        "kv_dtype": str(ops.dtype),  # pages hold what the model computes in
        "grammars": llguidance.__version__,  # which token is forced, and what a grammar allows
        "dequantised": importlib.metadata.version("gguf") if checkpoint.format == "gguf" else None,
    }
    if checkpoint.quantize is not None:
        settings["quantize"] = checkpoint.quantize
    return settings
