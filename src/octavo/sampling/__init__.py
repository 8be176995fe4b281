"""Sampling: draw the next tokens and compute their log-probabilities."""

from octavo.sampling.native_sampler import NativeSampler
from octavo.sampling.row_error import SAMPLING_FAILED, UNUSABLE_LOGITS, RowError
from octavo.sampling.sampler import (
    RowOutcome,
    RowState,
    Sampler,
    SampleRow,
    TorchSampler,
    sample_rows,
    score_rows,
)

__all__ = [
    "SAMPLING_FAILED",
    "UNUSABLE_LOGITS",
    "NativeSampler",
    "RowError",
    "RowOutcome",
    "RowState",
    "SampleRow",
    "Sampler",
    "TorchSampler",
    "sample_rows",
    "score_rows",
]
