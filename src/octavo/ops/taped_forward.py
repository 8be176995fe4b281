"""A model's forward pass, recorded once and run as one native call per step."""

from collections.abc import Callable

import torch

from octavo.kernels.arguments import STEP_VECTORS
from octavo.kernels.library import Engine
from octavo.kernels.tape import Tape
from octavo.ops.batch import Batch, BatchSequence

RECORDED_ROWS = 2  # with one, torch may give a row any stride


class TapedForward:
    """Gives, bit for bit, what the recorded function gives. One caller at a time."""

    def __init__(
        self, engine: Engine, forward: Callable[[Batch], torch.Tensor], *, page_size: int, max_positions: int
    ) -> None:
        # As long as a context can become: what grows with it, such as the angles of rope, is then complete.
        batch = _made_up_batch(page_size, max(max_positions, RECORDED_ROWS))
        vectors = dict(zip(STEP_VECTORS, _addresses(batch), strict=True))
        with engine.recording() as calls:
            output = forward(batch)
        self._tape = Tape(engine, calls, vectors, output)

    def __call__(self, batch: Batch) -> torch.Tensor:
        return self._tape.run(batch.num_rows, batch.num_sequences, _addresses(batch))


def _made_up_batch(page_size: int, context: int) -> Batch:
    blocks = torch.zeros(-(-context // page_size), dtype=torch.int64)
    token_ids, positions, kv_slots = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(3))
    sequence = BatchSequence(0, RECORDED_ROWS, context, blocks)
    return Batch.of(token_ids, positions, kv_slots, (sequence,), page_size)


def _addresses(batch: Batch) -> list[int]:
    """Of the batch's vectors, which are in the order of `STEP_VECTORS`."""
    address, _ = batch.vectors.buffer_info()
    return [address + start * batch.vectors.itemsize for start in batch.starts]
