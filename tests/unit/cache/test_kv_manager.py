"""KVManager compared with a minimal model: a dictionary from prefixes to blocks."""

import itertools
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.cache import BlockTable, KVManager

Prefix = tuple[str, tuple[int, ...]]


@dataclass
class CachedBlock:
    block: int
    holders: int = 0
    let_go: int = 0


@dataclass
class Table:
    """A sequence as the model sees it."""

    salt: str
    tokens: list[int]
    table: BlockTable
    computed: int
    shared: list[Prefix] = field(default_factory=list)


class NaiveCache:
    """Stores every cached block under the complete text up to its end. Slow and simple."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.table: dict[Prefix, CachedBlock] = {}
        self.clock = itertools.count(1)

    def hold(self, table: Table, max_tokens: int) -> None:
        """Hold the blocks of `table`'s text as far as they are cached."""
        for prefix in self.prefixes(table, len(table.shared), max_tokens // self.block_size):
            if prefix not in self.table:
                return
            self.table[prefix].holders += 1
            table.shared.append(prefix)

    def prefixes(self, table: Table, start: int, end: int) -> list[Prefix]:
        size = self.block_size
        return [(table.salt, tuple(table.tokens[: (page + 1) * size])) for page in range(start, end)]

    def let_go(self, table: Table) -> None:
        for prefix in reversed(table.shared):
            page = self.table[prefix]
            page.holders -= 1
            page.let_go = next(self.clock)

    def evict(self, count: int) -> None:
        idle = [prefix for prefix, page in self.table.items() if page.holders == 0]
        for prefix in sorted(idle, key=lambda prefix: self.table[prefix].let_go)[: max(0, count)]:
            del self.table[prefix]

    @property
    def num_idle(self) -> int:
        return sum(page.holders == 0 for page in self.table.values())


class KVManagerAgainstModel(RuleBasedStateMachine):
    @initialize(block_size=st.integers(1, 3), num_blocks=st.integers(4, 14))
    def start(self, block_size: int, num_blocks: int) -> None:
        self.kv = KVManager(num_blocks, block_size)
        self.model = NaiveCache(block_size)
        self.live: list[Table] = []
        self.texts: list[list[int]] = [[0, 0, 0, 0, 0, 0]]

    @rule(
        data=st.data(), salt=st.sampled_from("ab"), tail=st.lists(st.integers(0, 1), min_size=1, max_size=6)
    )
    def begin(self, data: st.DataObject, salt: str, tail: list[int]) -> None:
        known = data.draw(st.sampled_from(self.texts))
        tokens = known[: data.draw(st.integers(0, len(known)))] + tail
        self.texts = [*self.texts[-5:], tokens]
        table = Table(salt, tokens, self.kv.begin(tokens, salt), 0)
        self.model.hold(table, len(tokens) - 1)
        table.computed = len(table.shared) * self.kv.block_size
        self.live.append(table)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute(self, data: st.DataObject, count: int) -> None:
        """Grow and commit the computed tokens; a sequence at the end of its text appends a token."""
        table = data.draw(st.sampled_from(self.live))
        if table.computed == len(table.tokens):
            table.tokens.append(count % 2)
        end = min(table.computed + count, len(table.tokens))
        missing = self.kv.blocks_for(end) - len(table.table.block_ids)
        short = missing - self.kv.pool.num_free
        fits = short <= self.model.num_idle
        assert self.kv.grow(table.table, end) == fits
        if not fits:
            return
        self.model.evict(short)
        table.table.num_sent = len(table.table.block_ids)
        before = list(table.table.block_ids)
        self.kv.commit(table.table, table.tokens, end)
        table.computed = end
        first_swapped = len(before)
        for prefix in self.model.prefixes(table, len(table.shared), end // self.kv.block_size):
            index = len(table.shared)
            if prefix in self.model.table:
                first_swapped = min(first_swapped, index)
            page = self.model.table.setdefault(prefix, CachedBlock(before[index]))
            page.holders += 1
            table.shared.append(prefix)
        assert table.table.num_sent <= first_swapped

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.live))
        has_private = len(table.table.block_ids) > len(table.shared)
        before = table.computed
        gained = self.kv.adopt(table.table, table.tokens, before)
        if before == len(table.shared) * self.kv.block_size and not has_private:
            self.model.hold(table, len(table.tokens) - 1)
            table.computed = len(table.shared) * self.kv.block_size
        assert gained == table.computed - before

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.kv.release(table.table)
        self.model.let_go(table)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check(table.table for table in self.live)
        assert self.kv.num_cached == len(self.model.table)
        assert self.kv.num_available == self.kv.pool.num_free + self.model.num_idle
        for table in self.live:
            blocks = [self.model.table[prefix].block for prefix in table.shared]
            assert table.table.num_shared == len(blocks)
            assert table.table.block_ids[: len(blocks)] == blocks


KVManagerAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestKVManagerAgainstModel = KVManagerAgainstModel.TestCase


def test_the_last_token_is_never_served_from_the_cache() -> None:
    kv = KVManager(num_blocks=8, block_size=2)
    table = kv.begin([1, 2, 3, 4], "")
    assert kv.grow(table, 4)
    kv.commit(table, [1, 2, 3, 4], 4)
    assert kv.begin([1, 2, 3, 4], "").num_shared == 1
    assert kv.begin([1, 2, 3, 4, 5], "").num_shared == 2


def test_failed_growth_changes_nothing() -> None:
    kv = KVManager(num_blocks=3, block_size=2)
    first, second = kv.begin([1, 2, 3, 4], ""), kv.begin([5, 6, 7, 8], "")
    assert kv.grow(first, 4)
    assert not kv.grow(second, 4)
    assert second.block_ids == []
    kv.check([first, second])


def test_without_a_tree_all_blocks_are_private() -> None:
    kv = KVManager(num_blocks=4, block_size=2, prefix_caching=False)
    table = kv.begin([1, 2, 3, 4], "")
    assert kv.grow(table, 4)
    kv.commit(table, [1, 2, 3, 4], 4)
    assert (table.num_shared, kv.num_cached) == (0, 0)
    kv.release(table)
    assert kv.num_available == 4
    assert kv.begin([1, 2, 3, 4], "").num_shared == 0
