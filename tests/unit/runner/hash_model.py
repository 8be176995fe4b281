"""A model whose logits are a hash of the tokens that it finds in its KV blocks."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from octavo.ops import Batch

VOCAB = 24
BLOCK_SIZE = 4
UNWRITTEN = -1


@dataclass
class HashModel:
    """The logits of a row are a function of the tokens that it sees, which are read from blocks."""

    is_poisoned: Callable[[tuple[int, ...]], bool] = lambda context: False
    kv: dict[int, int] = field(default_factory=dict)  # token by block and offset

    def forward(self, batch: Batch) -> torch.Tensor:
        self.kv |= zip(batch.kv_slots.tolist(), batch.token_ids.tolist(), strict=True)
        rows = []
        for sequence in batch.sequences:
            blocks = sequence.blocks.tolist()
            seen = [
                self.kv.get(blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE, UNWRITTEN)
                for p in range(sequence.context)
            ]
            ends = range(sequence.context - sequence.num_rows + 1, sequence.context + 1)
            rows += [self._row(tuple(seen[:end])) for end in ends]
        return torch.tensor(rows)

    def _row(self, context: tuple[int, ...]) -> list[float]:
        if self.is_poisoned(context):
            return [math.nan] * VOCAB
        chance = random.Random(str(context))
        return [chance.gauss(0, 2) for _ in range(VOCAB)]
