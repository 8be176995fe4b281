"""The plan of a batch is kept for its other layers, and for no other batch, wherever that lies in memory."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from octavo.kernels.attention import KVPages, SequenceTable, attend, write_kv
from octavo.kernels.library import Engine, KernelLibrary

OpenEngine = Callable[..., Engine]

NUM_BLOCKS, PAGE, HEAD_DIM, KV_HEADS = 48, 32, 16, 2
PAGES_EACH = 34  # of a sequence: more than two splits
LENGTH = PAGES_EACH * PAGE


def full_pages(engine: Engine, kv_heads: int = KV_HEADS, num_blocks: int = NUM_BLOCKS) -> KVPages:
    pages = KVPages(
        engine.library,
        num_blocks=num_blocks,
        page_size=PAGE,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        dtype=torch.bfloat16,
    )
    generator = torch.Generator().manual_seed(kv_heads)
    key, value = torch.randn(2, num_blocks * PAGE, kv_heads, HEAD_DIM, generator=generator).bfloat16()
    write_kv(engine, pages, key, value, torch.arange(num_blocks * PAGE))
    return pages


@dataclass(frozen=True)
class Step:
    """A step whose vectors stay where they are while what they hold changes."""

    table: SequenceTable
    query: torch.Tensor

    @classmethod
    def of(cls, num_sequences: int) -> "Step":
        table = SequenceTable.from_lists(
            list(range(num_sequences)),
            [1] * num_sequences,
            [LENGTH] * num_sequences,
            [torch.arange(PAGES_EACH)] * num_sequences,
        )
        generator = torch.Generator().manual_seed(num_sequences)
        return cls(table, torch.randn(num_sequences, 4, HEAD_DIM, generator=generator).bfloat16())

    def change(self, chance: random.Random) -> None:
        """A little of it, as from one step to the next."""
        sequence = chance.randrange(len(self.table.contexts))
        blocks = self.table.blocks.view(-1, PAGES_EACH)[sequence]
        match chance.randrange(4):
            case 0:
                self.table.contexts[sequence] = chance.randrange(1, LENGTH + 1)
            case 1:
                blocks[chance.randrange(PAGES_EACH)] = chance.randrange(NUM_BLOCKS)
            case 2:
                blocks.copy_(torch.arange(PAGES_EACH) + chance.randrange(2))
            case 3:
                self.table.first_rows.copy_(self.table.first_rows.flip(0))

    def attended(
        self, engine: Engine, pages: KVPages, *, heads: int = 4, window: int | None = None
    ) -> torch.Tensor:
        return attend(engine, pages, self.query[:, :heads], self.table, scale=0.25, window=window)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def test_no_step_sees_the_plan_of_another(library: KernelLibrary) -> None:
    engine = Engine(library, 2, library.best_isa)
    both = [full_pages(engine), full_pages(engine, kv_heads=1)]
    chance = random.Random(11)
    steps = [Step.of(1), Step.of(6)]
    for _ in range(100):
        step = chance.choice(steps)
        step.change(chance)
        fresh = Engine(library, 2, library.best_isa)
        for _ in range(4):  # layers
            pages, heads, window = chance.choice(both), chance.choice((2, 4)), chance.choice((None, 40, 600))
            kept = step.attended(engine, pages, heads=heads, window=window)
            alone = Engine(library, 2, library.best_isa)
            assert same_bits(kept, step.attended(alone, pages, heads=heads, window=window))
            assert same_bits(kept, step.attended(fresh, pages, heads=heads, window=window))


def test_a_batch_may_have_more_windows_than_plans_are_kept(
    library: KernelLibrary, open_engine: OpenEngine
) -> None:
    engine, step = open_engine(library.best_isa), Step.of(3)
    pages = full_pages(engine)
    first = [step.attended(engine, pages, window=window) for window in range(1, LENGTH, 60)]
    again = [step.attended(engine, pages, window=window) for window in range(1, LENGTH, 60)]
    assert all(map(same_bits, first, again))


@pytest.mark.parametrize("name", ["first_rows", "row_counts", "contexts", "block_offsets", "blocks"])
@pytest.mark.parametrize("value", [-1, 2**40])
def test_a_good_batch_does_not_vouch_for_the_next(
    library: KernelLibrary, open_engine: OpenEngine, name: str, value: int
) -> None:
    engine, step = open_engine(library.best_isa), Step.of(3)
    pages = full_pages(engine)
    good = step.attended(engine, pages)
    vector: torch.Tensor = getattr(step.table, name)
    before, vector[1] = int(vector[1]), value
    with pytest.raises(ValueError, match="native kernel"):
        step.attended(engine, pages)
    vector[1] = before
    assert same_bits(step.attended(engine, pages), good)


def test_a_good_batch_does_not_vouch_for_other_pages_or_fewer_rows(
    library: KernelLibrary, open_engine: OpenEngine
) -> None:
    engine, step = open_engine(library.best_isa), Step.of(3)
    step.attended(engine, full_pages(engine))
    with pytest.raises(ValueError, match="native kernel"):
        step.attended(engine, full_pages(engine, num_blocks=PAGES_EACH - 1))
    step.attended(engine, full_pages(engine))
    with pytest.raises(ValueError, match="native kernel"):
        Step(step.table, step.query[:2]).attended(engine, full_pages(engine))
