"""Ownership of KV blocks. The only code that changes both the free list and the prefix tree.

Every block is in exactly one of three places: free, in the tree, or private to one sequence.

    tokens of a sequence   0 ............... num_shared blocks ................ len(block_ids) blocks
                           |  in the tree, held through `node` |  private to this sequence  |
                           |  always computed                  |  computed, or about to be  |

`begin` and `adopt` find shared blocks, `grow` adds private ones, `commit` moves private blocks whose KV is
computed into the tree, `release` frees the table. Without prefix caching there is no tree: all is private.
"""

from collections import Counter
from collections.abc import Iterable

from octavo.cache.block_pool import BlockPool
from octavo.cache.journal import KeyMaker, PrefixJournal
from octavo.cache.radix import Node, RadixTree, pack_tokens
from octavo.protocol import PrefixChange, PrefixList


class BlockTable:
    """The block table of one sequence. Mutated by KVManager only; the scheduler moves `num_sent` forward."""

    __slots__ = ("block_ids", "node", "num_sent", "num_shared")

    def __init__(self, node: Node | None) -> None:
        self.block_ids: list[int] = []
        self.num_shared = 0
        self.node = node  # the tree node at the end of the shared blocks; None without a tree
        self.num_sent = 0  # leading entries that were sent to the workers


class KVManager:
    """Used by the Scheduler only."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        key_maker: KeyMaker | None = None,
    ) -> None:
        """With a `key_maker`, changes of the tree are recorded: see `take_change`."""
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._journal = PrefixJournal(key_maker) if prefix_caching and key_maker is not None else None
        self.tree = RadixTree(block_size, self._journal) if prefix_caching else None

    @property
    def num_available(self) -> int:
        """The number of blocks that can be allocated without preempting a sequence."""
        return self.pool.num_free + (self.tree.num_idle_blocks if self.tree else 0)

    @property
    def num_cached(self) -> int:
        return self.tree.num_blocks if self.tree else 0

    @property
    def has_journal(self) -> bool:
        return self._journal is not None

    def take_change(self) -> PrefixChange | None:
        """Return how the set of cached prefixes changed since the last call; None if it did not."""
        return None if self._journal is None else self._journal.take()

    def prefixes(self) -> PrefixList:
        """Return the keys of all cached blocks, as of the last change that was taken.

        Call it between steps, when there is no other change.
        """
        if self._journal is None or self.tree is None:
            return PrefixList(0, b"")
        return PrefixList(self._journal.sequence, self.tree.keys().tobytes())

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def begin(self, token_ids: list[int], salt: str, *, reuse: bool = True) -> BlockTable:
        """Return a block table that starts with the blocks that the tree has for `token_ids`.

        The last token is always computed, because the sequence needs its logits.
        """
        table = BlockTable(self.tree.open(salt) if self.tree else None)
        if reuse:
            self._take_shared(table, token_ids)
        return table

    def adopt(self, table: BlockTable, token_ids: list[int], num_computed: int) -> int:
        """Add blocks that another sequence has committed meanwhile. Return the number of tokens gained."""
        if self.tree is None or table.node is None:
            return 0
        start, size = num_computed, self.block_size
        if start != table.num_shared * size or len(table.block_ids) != table.num_shared:
            return 0  # the next block is already private to this sequence, or partly computed
        if start + size >= len(token_ids):
            return 0
        if not self.tree.has_next(table.node, pack_tokens(token_ids[start : start + size])):
            return 0
        self._take_shared(table, token_ids)
        return table.num_shared * size - start

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Extend the table to `num_tokens`. Return False and change nothing if there are too few blocks."""
        if num_tokens <= len(table.block_ids) * self.block_size:  # most decodes
            return True
        missing = self.blocks_for(num_tokens) - len(table.block_ids)
        short = missing - self.pool.num_free
        if short > 0:
            if self.tree is None or short > self.tree.num_idle_blocks:
                return False
            self.pool.give(self.tree.evict(short))
        table.block_ids += self.pool.take(missing)
        return True

    def commit(self, table: BlockTable, token_ids: list[int], num_computed: int) -> None:
        """Move full computed blocks to the tree. Called only when their KV is known to be good."""
        full, shared = num_computed // self.block_size, table.num_shared
        if self.tree is None or table.node is None or full <= shared:
            return
        key = pack_tokens(token_ids[shared * self.block_size : full * self.block_size])
        own = table.block_ids[shared:full]
        table.node, existing = self.tree.extend(table.node, key, own)
        table.num_shared = full
        if existing:
            # Another sequence computed the same blocks in the same step. Their KV is bit-identical.
            table.block_ids[shared : shared + len(existing)] = existing
            table.num_sent = min(table.num_sent, shared)
            self.pool.give(own[: len(existing)])

    def release(self, table: BlockTable) -> None:
        """Release the table when its sequence ends or is preempted.

        Committed blocks stay in the tree until they are evicted.
        """
        self.pool.give(table.block_ids[table.num_shared :])
        if self.tree is not None and table.node is not None:
            self.tree.release(table.node)
        table.block_ids, table.num_shared, table.node, table.num_sent = [], 0, None, 0

    def _take_shared(self, table: BlockTable, token_ids: list[int]) -> None:
        if self.tree is None or table.node is None:
            return
        start, size = table.num_shared * self.block_size, self.block_size
        end = (len(token_ids) - 1) // size * size
        table.node, found = self.tree.acquire(table.node, pack_tokens(token_ids[start:end]))
        table.block_ids += found
        table.num_shared += len(found)

    def check(self, live: Iterable[BlockTable]) -> None:
        """Assert every invariant of this file. Walks over all blocks: for tests, simulation and idle time."""
        live = list(live)
        owned = self.pool.free_ids().tolist()
        for table in live:
            owned += table.block_ids[table.num_shared :]
        nodes = list(self.tree.nodes()) if self.tree else []
        for node in nodes:
            owned += node.blocks
        owned.sort()
        if owned != list(range(self.pool.num_total)):
            twice = [block for block, count in Counter(owned).items() if count > 1]
            raise AssertionError(f"blocks owned twice ({twice[:3]}), lost or unknown: {len(owned)} are owned")
        if self.tree:
            check_tree(self.tree, nodes, live)


def check_tree(tree: RadixTree, nodes: list[Node], live: list[BlockTable]) -> None:
    """Assert that reference counts equal holders, counters equal sums, and idle nodes are in order."""
    held: dict[Node, int] = {}
    for table in live:
        path: list[int] = []
        node = table.node
        while node is not None:
            held[node] = held.get(node, 0) + 1
            path[:0] = node.blocks
            node = node.parent
        assert path == table.block_ids[: table.num_shared], "a table's shared blocks are not its node's path"
    rank = {node: index for index, node in enumerate(tree.idle_nodes())}
    num_blocks = num_idle_blocks = 0
    for node in nodes:
        assert node.refs == held.get(node, 0), "references do not equal holders"
        num_blocks += len(node.blocks)
        if node.refs or node.parent is None:
            assert node not in rank, "a node that is held, or a root, is idle"
            assert node.refs or node.children, "an unused root was kept"
        else:
            assert node in rank, "a node without references is not idle"
            num_idle_blocks += len(node.blocks)
            assert rank[node] < rank.get(node.parent, len(rank)), "an idle node comes after its parent"
    assert tree.num_blocks == num_blocks, "the tree's block count is wrong"
    assert tree.num_nodes == len([node for node in nodes if node.parent is not None]), "nodes are miscounted"
    assert tree.num_idle_blocks == num_idle_blocks, "the idle block count is wrong"
    assert len(rank) == sum([not node.refs and node.parent is not None for node in nodes]), (
        "a removed node is idle"
    )
