"""The plan of a batch is reused for its other layers and for no other batch, at any memory address."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from octavo.kernels.attention import KVBlocks, SequenceTable, attend, write_kv
from octavo.kernels.library import KernelLibrary, KernelPool

OpenPool = Callable[..., KernelPool]

NUM_BLOCKS, PAGE, HEAD_DIM, KV_HEADS = 48, 32, 16, 2
BLOCKS_EACH = 34  # per sequence: more than two splits
LENGTH = BLOCKS_EACH * PAGE


def full_blocks(pool: KernelPool, kv_heads: int = KV_HEADS, num_blocks: int = NUM_BLOCKS) -> KVBlocks:
    kv = KVBlocks(
        pool.library,
        num_blocks=num_blocks,
        block_size=PAGE,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        dtype=torch.bfloat16,
    )
    generator = torch.Generator().manual_seed(kv_heads)
    key, value = torch.randn(2, num_blocks * PAGE, kv_heads, HEAD_DIM, generator=generator).bfloat16()
    write_kv(pool, kv, key, value, torch.arange(num_blocks * PAGE))
    return kv


@dataclass(frozen=True)
class Step:
    """A step whose vectors keep their addresses while their content changes."""

    table: SequenceTable
    query: torch.Tensor

    @classmethod
    def of(cls, num_sequences: int) -> "Step":
        table = SequenceTable.from_lists(
            list(range(num_sequences)),
            [1] * num_sequences,
            [LENGTH] * num_sequences,
            [torch.arange(BLOCKS_EACH)] * num_sequences,
        )
        generator = torch.Generator().manual_seed(num_sequences)
        return cls(table, torch.randn(num_sequences, 4, HEAD_DIM, generator=generator).bfloat16())

    def change(self, chance: random.Random) -> None:
        """Change a part of the content, as from one step to the next."""
        sequence = chance.randrange(len(self.table.contexts))
        blocks = self.table.blocks.view(-1, BLOCKS_EACH)[sequence]
        match chance.randrange(4):
            case 0:
                self.table.contexts[sequence] = chance.randrange(1, LENGTH + 1)
            case 1:
                blocks[chance.randrange(BLOCKS_EACH)] = chance.randrange(NUM_BLOCKS)
            case 2:
                blocks.copy_(torch.arange(BLOCKS_EACH) + chance.randrange(2))
            case 3:
                self.table.first_rows.copy_(self.table.first_rows.flip(0))

    def attended(
        self, pool: KernelPool, kv: KVBlocks, *, heads: int = 4, window: int | None = None
    ) -> torch.Tensor:
        return attend(pool, kv, self.query[:, :heads], self.table, scale=0.25, window=window)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_a_step_never_uses_the_plan_of_another(library: KernelLibrary) -> None:
    pool = KernelPool(library, 2, library.best_isa)
    both = [full_blocks(pool), full_blocks(pool, kv_heads=1)]
    chance = random.Random(11)
    steps = [Step.of(1), Step.of(6)]
    for _ in range(100):
        step = chance.choice(steps)
        step.change(chance)
        fresh = KernelPool(library, 2, library.best_isa)
        for _ in range(4):  # layers
            kv, heads, window = chance.choice(both), chance.choice((2, 4)), chance.choice((None, 40, 600))
            kept = step.attended(pool, kv, heads=heads, window=window)
            alone = KernelPool(library, 2, library.best_isa)
            assert same_bits(kept, step.attended(alone, kv, heads=heads, window=window))
            assert same_bits(kept, step.attended(fresh, kv, heads=heads, window=window))


def test_a_batch_may_have_more_windows_than_the_plan_cache(
    library: KernelLibrary, open_pool: OpenPool
) -> None:
    pool, step = open_pool(library.best_isa), Step.of(3)
    kv = full_blocks(pool)
    first = [step.attended(pool, kv, window=window) for window in range(1, LENGTH, 60)]
    again = [step.attended(pool, kv, window=window) for window in range(1, LENGTH, 60)]
    assert all(map(same_bits, first, again))


@pytest.mark.parametrize("name", ["first_rows", "row_counts", "contexts", "block_offsets", "blocks"])
@pytest.mark.parametrize("value", [-1, 2**40])
def test_a_valid_batch_does_not_skip_validation_of_the_next(
    library: KernelLibrary, open_pool: OpenPool, name: str, value: int
) -> None:
    pool, step = open_pool(library.best_isa), Step.of(3)
    kv = full_blocks(pool)
    good = step.attended(pool, kv)
    vector: torch.Tensor = getattr(step.table, name)
    before, vector[1] = int(vector[1]), value
    with pytest.raises(ValueError, match="native kernel"):
        step.attended(pool, kv)
    vector[1] = before
    assert same_bits(step.attended(pool, kv), good)


def test_a_valid_batch_does_not_skip_validation_of_other_blocks_or_fewer_rows(
    library: KernelLibrary, open_pool: OpenPool
) -> None:
    pool, step = open_pool(library.best_isa), Step.of(3)
    step.attended(pool, full_blocks(pool))
    with pytest.raises(ValueError, match="native kernel"):
        step.attended(pool, full_blocks(pool, num_blocks=BLOCKS_EACH - 1))
    step.attended(pool, full_blocks(pool))
    with pytest.raises(ValueError, match="native kernel"):
        Step(step.table, step.query[:2]).attended(pool, full_blocks(pool))
