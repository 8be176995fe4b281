"""A model's forward pass, recorded once and run as one native call per step."""

from collections.abc import Callable

import torch

from octavo.kernels.arguments import STEP_VECTORS
from octavo.kernels.library import KernelPool
from octavo.kernels.tape import Tape
from octavo.ops.batch import Batch, BatchSequence

RECORDED_ROWS = 2  # the stride of a single row is arbitrary in torch


class TapedForward:
    """Returns results that are bit-identical to those of the recorded function. One caller at a time."""

    def __init__(
        self,
        pool: KernelPool,
        forward: Callable[[Batch], torch.Tensor],
        *,
        block_size: int,
        max_positions: int,
    ) -> None:
        # Use the longest possible context: tables that grow with it, such as rope angles, are then complete.
        batch = _dummy_batch(block_size, max(max_positions, RECORDED_ROWS))
        vectors = dict(zip(STEP_VECTORS, _addresses(batch), strict=True))
        with pool.recording() as calls:
            output = forward(batch)
        self._tape = Tape(pool, calls, vectors, output)

    def __call__(self, batch: Batch) -> torch.Tensor:
        return self._tape.run(batch.num_rows, batch.num_sequences, _addresses(batch))


def _dummy_batch(block_size: int, context: int) -> Batch:
    blocks = torch.zeros(-(-context // block_size), dtype=torch.int64)
    token_ids, positions, kv_slots = (torch.zeros(RECORDED_ROWS, dtype=torch.int64) for _ in range(3))
    sequence = BatchSequence(0, RECORDED_ROWS, context, blocks)
    return Batch.of(token_ids, positions, kv_slots, (sequence,), block_size)


def _addresses(batch: Batch) -> list[int]:
    """Return the addresses of the batch's vectors, in the order of `STEP_VECTORS`."""
    address, _ = batch.vectors.buffer_info()
    return [address + start * batch.vectors.itemsize for start in batch.starts]
