"""`system_fingerprint`: a short hash of everything that determines the numerics of an answer.

With the same fingerprint, the same request (token ids, parameters, seed) has the same answer. The hash leaves
out what does not change answers: threads, block size, batch and step limits, the cache and the tape; with
native kernels, also the processor and its instruction set.
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
    """Return `fp_` and twelve hexadecimal digits."""
    facts = {"checkpoint": identity(checkpoint), "numerics": numeric_settings(checkpoint, ops)}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return "fp_" + hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]


def numeric_settings(checkpoint: Checkpoint, ops: Ops) -> Mapping[str, Any]:
    """Return what determines the bits of an answer, except the content of the checkpoint."""
    settings: dict[str, Any] = {
        "arithmetic": ops.arithmetic,
        "dtype": str(ops.dtype),
        "kv_dtype": str(ops.dtype),  # blocks have the dtype of the computation
        "grammars": llguidance.__version__,  # determines forced and allowed tokens
        "dequantised": importlib.metadata.version("gguf") if checkpoint.format == "gguf" else None,
    }
    if checkpoint.quantize is not None:
        settings["quantize"] = checkpoint.quantize
    return settings
