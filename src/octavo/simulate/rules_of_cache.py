"""Invariants of the cache beyond its own check.

Blocks are evicted from the tree in the order of last use, and the view shows blocks and tree correctly.
"""

from octavo.cache.kv_manager import KVManager
from octavo.cache.radix import Node, RadixTree
from octavo.engine import viewing  # the module, because bugs are planted in its functions
from octavo.schedule.sequence import Sequence
from octavo.simulate.tracked_request import Violation
from octavo.view import CACHED_HELD, CACHED_IDLE, FREE


class WatchedTree(RadixTree):
    """The real tree, with an independent record of when each node was last released."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._clock = 0
        self._released_at: dict[Node, int] = {}
        self.num_evicted = 0

    def release(self, node: Node) -> None:
        at: Node | None = node
        while at is not None:
            self._clock += 1
            self._released_at[at] = self._clock
            at = at.parent
        super().release(node)

    def evict(self, count: int) -> list[int]:
        expected: list[int] = []
        for node in sorted(self.idle_nodes(), key=self._released_at.__getitem__):
            if len(expected) == count:
                break
            expected += node.blocks[: -(count - len(expected)) - 1 : -1]
        evicted = super().evict(count)
        if sorted(evicted) != sorted(expected):
            raise Violation(f"blocks {evicted} were evicted, but the least recently used are {expected}")
        self.num_evicted += len(evicted)
        return evicted

    def _remove(self, node: Node) -> None:
        super()._remove(node)
        self._released_at.pop(node, None)


def check_committed(running: list[Sequence], kv: KVManager) -> None:
    """Check that the tree contains exactly the blocks that are full and computed."""
    if kv.tree is None:
        return
    for sequence in running:
        assert sequence.block_table is not None
        if sequence.block_table.num_shared != sequence.num_computed // kv.block_size:
            raise Violation(
                f"{sequence.request.request_id} computed {sequence.num_computed} tokens, but has "
                f"{sequence.block_table.num_shared} blocks of {kv.block_size} in the tree"
            )


def check_block_map(running: list[Sequence], kv: KVManager) -> None:
    """Check the block map against an independent computation, block by block."""
    owners = dict.fromkeys(kv.pool.free_ids(), FREE)
    for node in kv.tree.nodes() if kv.tree else ():
        owners |= dict.fromkeys(node.blocks, CACHED_HELD if node.refs else CACHED_IDLE)
    live = []
    for sequence in running:
        assert sequence.block_table is not None
        owners |= dict.fromkeys(
            sequence.block_table.block_ids[sequence.block_table.num_shared :], sequence.slot
        )
        live.append((sequence.slot, sequence.block_table))
    shown = [code for code, count in viewing.block_map(kv, live) for _ in range(count)]
    if shown != [owners.get(block) for block in range(kv.pool.num_total)]:
        raise Violation(f"the block map shows {shown}, but the owners are {owners}")


def check_outline(tree: RadixTree) -> None:
    """Check that the outline has every node once, with its parent, and truncation keeps its beginning."""
    full = viewing.outline(tree, tree.num_nodes + 1)
    nodes = [node for node in tree.nodes() if node.parent is not None]
    expected = {
        node.blocks[0]: (node.parent.blocks[0] if node.parent and node.parent.blocks else None, node.refs)
        for node in nodes
    }
    if {node.id: (node.parent, node.holders) for node in full.nodes} != expected or full.left_out:
        raise Violation(f"the outline {full} does not match the tree")
    cut = viewing.outline(tree, len(nodes) // 2)
    if cut.nodes != full.nodes[: len(nodes) // 2] or cut.left_out != len(nodes) - len(cut.nodes):
        raise Violation(f"the outline {full} was truncated to {cut}")
