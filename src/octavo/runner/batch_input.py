"""Convert the slices of a step to the batch for the model."""

from array import array
from collections.abc import Sequence

import torch

from octavo.ops import Batch
from octavo.ops.batch import INTEGER
from octavo.plan import SequenceSlice
from octavo.runner.slots import Slots


def build_batch(
    slices: Sequence[SequenceSlice], slots: Slots, block_size: int, device: torch.device
) -> Batch:
    """Return the batch, with rows in the order of the slices.

    Uses plain arrays: for the few numbers of a decode step, any other method has a higher start-up cost.
    """
    token_ids, positions, kv_slots = array(INTEGER), array(INTEGER), array(INTEGER)
    first_rows, row_counts, contexts = array(INTEGER), array(INTEGER), array(INTEGER)
    block_offsets, blocks = array(INTEGER, [0]), array(INTEGER)
    for piece in slices:
        table = slots.tables[piece.slot]
        num_rows = len(piece.token_ids)
        start, end = piece.start, piece.start + num_rows
        first_rows.append(len(token_ids))
        row_counts.append(num_rows)
        contexts.append(end)
        token_ids.extend(piece.token_ids)
        positions.extend(range(start, end))
        num_blocks = -(-end // block_size)
        for block in range(start // block_size, num_blocks):
            # The positions of the block that are computed now.
            first, last = max(start, block * block_size), min(end, (block + 1) * block_size)
            shift = (table[block] - block) * block_size
            kv_slots.extend(range(first + shift, last + shift))
        blocks.extend(table[:num_blocks])
        block_offsets.append(len(blocks))
    vectors = token_ids + positions + kv_slots + first_rows + row_counts + contexts + block_offsets + blocks
    return Batch(vectors, len(token_ids), len(slices), block_size, device)
