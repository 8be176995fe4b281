"""From the plan of a step to the batch a model takes."""

from array import array

import torch

from octavo.ops import Batch
from octavo.ops.batch import INTEGER
from octavo.plan import StepPlan
from octavo.runner.slots import Slots


def build_batch(plan: StepPlan, slots: Slots, page_size: int, device: torch.device) -> Batch:
    """Rows stand in the order of the plan's slices.

    Plain lists of numbers: for the few that a decode step has, every other way takes longer to begin.
    """
    token_ids, positions, kv_slots = array(INTEGER), array(INTEGER), array(INTEGER)
    first_rows, row_counts, contexts = array(INTEGER), array(INTEGER), array(INTEGER)
    block_offsets, blocks = array(INTEGER, [0]), array(INTEGER)
    for piece in plan.slices:
        table = slots.tables[piece.slot]
        num_rows = len(piece.token_ids)
        start, end = piece.start, piece.start + num_rows
        first_rows.append(len(token_ids))
        row_counts.append(num_rows)
        contexts.append(end)
        token_ids.extend(piece.token_ids)
        positions.extend(range(start, end))
        num_pages = -(-end // page_size)
        for page in range(start // page_size, num_pages):
            # Of the page's positions, those that are computed now.
            first, last = max(start, page * page_size), min(end, (page + 1) * page_size)
            shift = (table[page] - page) * page_size
            kv_slots.extend(range(first + shift, last + shift))
        blocks.extend(table[:num_pages])
        block_offsets.append(len(blocks))
    vectors = token_ids + positions + kv_slots + first_rows + row_counts + contexts + block_offsets + blocks
    return Batch(vectors, len(token_ids), len(plan.slices), page_size, device)
