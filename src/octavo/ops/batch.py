"""The tokens of one step."""

import functools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from octavo.kernels.attention import SequenceTable

INTEGER = "q"  # array's type code of int64


@dataclass(frozen=True)
class BatchSequence:
    """One sequence's rows in a batch, and where its keys and values are.

    Row r of the sequence (0 <= r < num_rows) is batch row first_row + r and has the absolute position
    context - num_rows + r.
    """

    first_row: int
    num_rows: int
    context: int  # KV rows that the last row sees, itself included
    blocks: torch.Tensor  # int64 [ceil(context / block_size)]: position p is in block blocks[p // block_size]


@dataclass(frozen=True)
class Batch:
    """T tokens of S sequences. The sequences' rows are disjoint and cover the batch.

    All vectors that kernels read in a step are in one array, because allocating many small ones is slower:

        token_ids | positions | kv_slots | first_rows | row_counts | contexts | block_offsets | blocks
        T           T           T          S            S            S          S + 1
    """

    vectors: "array[int]"
    num_rows: int
    num_sequences: int
    block_size: int
    device: torch.device

    @classmethod
    def of(
        cls,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_slots: torch.Tensor,
        sequences: Sequence[BatchSequence],
        block_size: int,
    ) -> "Batch":
        """Return a batch made of its parts. The engine itself fills `vectors` directly."""
        table = SequenceTable.from_lists(
            [sequence.first_row for sequence in sequences],
            [sequence.num_rows for sequence in sequences],
            [sequence.context for sequence in sequences],
            [sequence.blocks for sequence in sequences],
        )
        parts = [token_ids, positions, kv_slots, table.first_rows, table.row_counts, table.contexts]
        vectors = torch.cat([part.cpu() for part in (*parts, table.block_offsets, table.blocks)])
        return cls(
            array(INTEGER, vectors.tolist()), len(token_ids), len(sequences), block_size, token_ids.device
        )

    @property
    def starts(self) -> tuple[int, ...]:
        """The start index of each vector."""
        rows, sequences = self.num_rows, self.num_sequences
        tables = 3 * rows
        return (
            0,
            rows,
            2 * rows,
            tables,
            tables + sequences,
            tables + 2 * sequences,
            tables + 3 * sequences,
            tables + 4 * sequences + 1,
        )

    @functools.cached_property
    def token_ids(self) -> torch.Tensor:
        """int64 [T]"""
        return self._parts[0].to(self.device)

    @functools.cached_property
    def positions(self) -> torch.Tensor:
        """int64 [T]"""
        return self._parts[1].to(self.device)

    @functools.cached_property
    def kv_slots(self) -> torch.Tensor:
        """int64 [T]: block * block_size + offset, where the row's key and value go."""
        return self._parts[2].to(self.device)

    @functools.cached_property
    def table(self) -> SequenceTable:
        """The sequences as the native attention reads them."""
        return SequenceTable(*self._parts[3:])

    @functools.cached_property
    def sequences(self) -> tuple[BatchSequence, ...]:
        """The sequences one by one, their blocks on the device."""
        first_rows, row_counts, contexts, offsets = (part.tolist() for part in self._parts[3:7])
        blocks = self._parts[7].to(self.device)
        return tuple(
            BatchSequence(first_row, num_rows, context, blocks[start:end])
            for first_row, num_rows, context, (start, end) in zip(
                first_rows, row_counts, contexts, pairwise(offsets), strict=True
            )
        )

    @property
    def num_positions(self) -> int:
        """The largest position plus one. Does not access the device."""
        return max(self.vectors[self.starts[5] : self.starts[6]])

    @functools.cached_property
    def _parts(self) -> list[torch.Tensor]:
        joined = torch.frombuffer(self.vectors, dtype=torch.int64)
        return [joined[start:end] for start, end in pairwise((*self.starts, len(self.vectors)))]
