"""From the plan of a step to the tensors a model takes."""

import numpy as np
import torch

from octavo.ops import Batch, BatchSequence
from octavo.plan import StepPlan
from octavo.runner.slots import Slots


def build_batch(plan: StepPlan, slots: Slots, page_size: int, device: torch.device) -> Batch:
    """Rows stand in the order of the plan's slices."""
    tokens, positions, kv_slots, sequences = [], [], [], []
    first_row = 0
    for piece in plan.slices:
        num_rows = len(piece.token_ids)
        context = piece.start + num_rows
        table = slots.tables[piece.slot, : -(-context // page_size)]
        span = np.arange(piece.start, context)
        tokens.append(np.asarray(piece.token_ids, dtype=np.int64))
        positions.append(span)
        kv_slots.append(table[span // page_size] * page_size + span % page_size)
        # A copy: the table may change while a device still reads.
        blocks = torch.from_numpy(table.copy()).to(device)
        sequences.append(BatchSequence(first_row, num_rows, context, blocks))
        first_row += num_rows
    return Batch(
        token_ids=_concatenate(tokens, device),
        positions=_concatenate(positions, device),
        kv_slots=_concatenate(kv_slots, device),
        sequences=tuple(sequences),
        page_size=page_size,
    )


def _concatenate(
    parts: list["np.ndarray[tuple[int], np.dtype[np.int64]]"], device: torch.device
) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)
