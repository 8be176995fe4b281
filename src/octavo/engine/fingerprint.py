"""`system_fingerprint`: one short word for everything numeric that stands behind an answer.

With the same fingerprint, the same request (token ids, parameters, seed) has the same answer. Whatever must
not change an answer is not in it: threads, page size, limits of batches and steps, the cache, the tape.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any

import llguidance
import torch

from octavo import version
from octavo.checkpoint import Checkpoint
from octavo.checkpoint.identity import identity
from octavo.kernels.library import find_library
from octavo.ops import NativeOps, Ops

DIGITS = 12


def system_fingerprint(checkpoint: Checkpoint, ops: Ops) -> str:
    """`fp_` and twelve hexadecimal digits."""
    facts = {"checkpoint": identity(checkpoint), "numerics": numeric_settings(ops)}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return "fp_" + hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]


def numeric_settings(ops: Ops) -> Mapping[str, Any]:
    """What may move the last bit of a logit, the checkpoint aside.

    Torch is named on the native path too: it computes the angles of rope there.
    """
    return {
        "octavo": version.__version__,
        "dtype": str(ops.dtype),
        "kv_dtype": str(ops.dtype),  # pages hold what the model computes in
        "device": ops.device.type,
        "torch": torch.__version__,
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "grammars": llguidance.__version__,  # which token is forced, and what a grammar allows
        "libc": platform.libc_ver(),  # its logarithm is in noise and logprobs; a wheel meets many
        "kernels": ops.engine.isa.name.lower() if isinstance(ops, NativeOps) else "torch",
        "kernel_library": _kernel_library() if isinstance(ops, NativeOps) else None,
    }


def _kernel_library() -> str | None:
    """The hash of the library's file. A version counted by hand would be forgotten when a sum changes."""
    path = find_library()
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
