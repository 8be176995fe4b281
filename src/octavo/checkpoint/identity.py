"""Identify a checkpoint by its headers and a sample of its bytes. Cheap for checkpoints of any size."""

import hashlib
import os
from pathlib import Path
from typing import Any

from octavo.checkpoint import Checkpoint
from octavo.checkpoint.tensors import open_for_pread, read_exactly

SAMPLES = 64  # per weight file
SAMPLE_BYTES = 4096


def identity(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return plain values that are equal for copies of a checkpoint and differ for different checkpoints.

    They are the format and the config; the name, shape, stored dtype and size of every tensor; the size of
    every weight file and a hash of 64 evenly spaced samples of 4 KiB. File names and paths are left out: a
    copy is the same checkpoint. Fine-tuning changes nearly every weight, so the samples distinguish a model
    from its fine-tunes. They miss an edit of single weights between the samples.
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
    """Return the size of a file and the hash of its samples. A small file is hashed completely."""
    digest = hashlib.sha256()
    with open_for_pread(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size <= SAMPLES * SAMPLE_BYTES:
            digest.update(read_exactly(descriptor, 0, size, path).tobytes())
        else:
            for number in range(SAMPLES):
                offset = (size - SAMPLE_BYTES) * number // (SAMPLES - 1)  # includes both ends of the file
                digest.update(read_exactly(descriptor, offset, SAMPLE_BYTES, path).tobytes())
    return size, digest.hexdigest()
