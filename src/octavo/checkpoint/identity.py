"""Which checkpoint this is, told from its headers and a few of its bytes. Cheap, whatever its size."""

import hashlib
import os
from pathlib import Path
from typing import Any

from octavo.checkpoint import Checkpoint
from octavo.checkpoint.tensors import open_for_pread, read_exactly

SAMPLES = 64  # of each file of weights
SAMPLE_BYTES = 4096


def identity(checkpoint: Checkpoint) -> dict[str, Any]:
    """Plain values that are equal for two copies of a checkpoint and differ for two checkpoints.

    Format and config; every tensor's name, shape, stored dtype and bytes; every weight file's size and a hash
    of 64 pieces of 4 KiB, spread evenly over it. Neither names nor places of files: a copy is the same
    checkpoint. Further training moves nearly every weight, so the pieces tell a model from its fine-tunes;
    an edit of single weights between the pieces would go unseen.
    """
    return {
        "format": checkpoint.format,
        "config": checkpoint.config,
        "tensors": sorted(
            (tensor.name, tensor.shape, tensor.source_dtype, tensor.nbytes)
            for tensor in checkpoint.tensors.values()
        ),
        "files": sorted(_sampled(path) for path in checkpoint.store.files),
    }


def _sampled(path: Path) -> tuple[int, str]:
    """Size of a file and the hash of its pieces; a small file is one piece."""
    digest = hashlib.sha256()
    with open_for_pread(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size <= SAMPLES * SAMPLE_BYTES:
            digest.update(read_exactly(descriptor, 0, size, path).tobytes())
        else:
            for number in range(SAMPLES):
                offset = (size - SAMPLE_BYTES) * number // (SAMPLES - 1)  # the first and the last included
                digest.update(read_exactly(descriptor, offset, SAMPLE_BYTES, path).tobytes())
    return size, digest.hexdigest()
