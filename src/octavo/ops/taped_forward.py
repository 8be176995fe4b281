"""A model's forward pass, recorded once and run as one native call per step."""

from collections.abc import Callable, Mapping

import torch

from octavo.kernels.library import Engine
from octavo.kernels.tape import StepValue, Tape
from octavo.ops.batch import Batch, BatchSequence

RECORDED_ROWS = 2  # with one, torch may give a row any stride


class TapedForward:
    """Gives, bit for bit, what the recorded function gives. One caller at a time."""

    def __init__(
        self, engine: Engine, forward: Callable[[Batch], torch.Tensor], *, page_size: int, max_positions: int
    ) -> None:
        # As long as a context can become: what grows with it, such as the angles of rope, is then complete.
        batch = _made_up_batch(page_size, max(max_positions, RECORDED_ROWS))
        inputs = {vector.data_ptr(): name for name, vector in _inputs(batch).items()}
        with engine.recording() as calls:
            output = forward(batch)
        self._tape = Tape(engine, calls, inputs, output)

    def __call__(self, batch: Batch) -> torch.Tensor:
        return self._tape.run(len(batch.token_ids), len(batch.sequences), _inputs(batch))


def _made_up_batch(page_size: int, context: int) -> Batch:
    blocks = torch.zeros(-(-context // page_size), dtype=torch.int64)
    token_ids, positions, kv_slots = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(3))
    sequence = BatchSequence(0, RECORDED_ROWS, context, blocks)
    return Batch(token_ids, positions, kv_slots, (sequence,), page_size)


def _inputs(batch: Batch) -> Mapping[StepValue, torch.Tensor]:
    sequences = batch.sequence_table
    return {
        StepValue.TOKEN_IDS: batch.token_ids,
        StepValue.POSITIONS: batch.positions,
        StepValue.KV_SLOTS: batch.kv_slots,
        StepValue.FIRST_ROWS: sequences.first_rows,
        StepValue.ROW_COUNTS: sequences.row_counts,
        StepValue.CONTEXTS: sequences.contexts,
        StepValue.BLOCK_OFFSETS: sequences.block_offsets,
        StepValue.BLOCKS: sequences.blocks,
    }
