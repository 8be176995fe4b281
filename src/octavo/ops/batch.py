"""The tokens of one step, as tensors."""

import functools
from dataclasses import dataclass

import torch

from octavo.kernels.attention import SequenceTable


@dataclass(frozen=True)
class BatchSequence:
    """One sequence's rows in a batch, and where its keys and values are.

    Row r of the sequence (0 <= r < num_rows) is batch row first_row + r and has the absolute position
    context - num_rows + r.
    """

    first_row: int
    num_rows: int
    context: int  # KV rows that the last row sees, itself included
    blocks: torch.Tensor  # int64 [ceil(context / page_size)]: position p is in page blocks[p // page_size]


@dataclass(frozen=True)
class Batch:
    """T tokens of some sequences. The sequences' rows are disjoint and cover the batch."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    kv_slots: torch.Tensor  # int64 [T]: page * page_size + offset, where the row's key and value go
    sequences: tuple[BatchSequence, ...]
    page_size: int

    @functools.cached_property
    def sequence_table(self) -> SequenceTable:
        """The sequences as the native attention reads them, made once for all layers."""
        return SequenceTable.from_lists(
            [sequence.first_row for sequence in self.sequences],
            [sequence.num_rows for sequence in self.sequences],
            [sequence.context for sequence in self.sequences],
            [sequence.blocks for sequence in self.sequences],
        )

    @property
    def num_positions(self) -> int:
        """One more than the largest position, known without asking the device."""
        return max((sequence.context for sequence in self.sequences), default=0)
