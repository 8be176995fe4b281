"""Plans are converted to batches: every row has its position and its slot in the blocks."""

import random

import torch

from octavo.plan import SequenceSlice, StepPlan
from octavo.runner.batch_input import build_batch
from octavo.runner.slots import Slots

BLOCK = 4


def test_rows_follow_their_block_tables() -> None:
    chance = random.Random(2)
    for _ in range(50):
        blocks = chance.sample(range(1000), 100)
        slots, slices, tables = Slots(8), [], {}
        for slot in chance.sample(range(8), chance.randrange(1, 8)):
            start, count = chance.randrange(20), chance.choice([1, 1, 3, 9])
            num_blocks = -(-(start + count) // BLOCK)
            tables[slot] = [blocks.pop() for _ in range(num_blocks)]
            tokens = tuple(chance.randrange(99) for _ in range(count))
            slices.append(SequenceSlice(slot, start, tokens, 0, tuple(tables[slot]), 1))
        slots.update(StepPlan(1, (), (), tuple(slices)))
        batch = build_batch(slices, slots, BLOCK, torch.device("cpu"))

        expected = [token for piece in slices for token in piece.token_ids]
        rows = [(p.slot, p.start + i) for p in slices for i in range(len(p.token_ids))]
        assert batch.token_ids.tolist() == expected
        assert batch.positions.tolist() == [position for _, position in rows]
        assert batch.kv_slots.tolist() == [tables[s][p // BLOCK] * BLOCK + p % BLOCK for s, p in rows]
        assert batch.num_rows == len(rows)
        assert batch.num_positions == 1 + max(position for _, position in rows)
        first_row = 0
        for piece, sequence in zip(slices, batch.sequences, strict=True):
            assert (sequence.first_row, sequence.num_rows) == (first_row, len(piece.token_ids))
            assert sequence.context == piece.start + len(piece.token_ids)
            assert sequence.blocks.tolist() == tables[piece.slot]
            first_row += len(piece.token_ids)


def test_a_table_edit_truncates_the_rest_of_the_table() -> None:
    slots = Slots(1)
    slots.update(StepPlan(1, (), (), (SequenceSlice(0, 0, (1,) * 12, 0, (7, 8, 9), 0),)))
    slots.update(StepPlan(2, (), (), (SequenceSlice(0, 8, (1,), 1, (5, 6), 0),)))
    assert slots.tables[0].tolist() == [7, 5, 6]
