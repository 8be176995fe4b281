"""Sampling: what token comes next, and how probable it was."""

from octavo.sampling.row_error import RowError
from octavo.sampling.sampler import RowOutcome, RowState, SampleRow, sample_rows, score_rows

__all__ = ["RowError", "RowOutcome", "RowState", "SampleRow", "sample_rows", "score_rows"]
