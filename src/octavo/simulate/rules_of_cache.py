"""What must hold for the cache beyond its own check: pages leave the tree in order of last use, and what is
shown of pages and tree is true."""

from octavo.cache.kv_manager import KVManager
from octavo.cache.radix import Node, RadixTree
from octavo.engine import viewing  # the module, in whose functions bugs are planted
from octavo.schedule.sequence import Sequence
from octavo.simulate.ticket import Violation
from octavo.view import CACHED_HELD, CACHED_IDLE, FREE


class WatchedTree(RadixTree):
    """The real tree, and beside it a second account of when each node was last let go."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._clock = 0
        self._let_go: dict[Node, int] = {}
        self.num_evicted = 0

    def release(self, node: Node) -> None:
        at: Node | None = node
        while at is not None:
            self._clock += 1
            self._let_go[at] = self._clock
            at = at.parent
        super().release(node)

    def evict(self, count: int) -> list[int]:
        expected: list[int] = []
        for node in sorted(self.idle_nodes(), key=self._let_go.__getitem__):
            if len(expected) == count:
                break
            expected += node.blocks[: -(count - len(expected)) - 1 : -1]
        evicted = super().evict(count)
        if sorted(evicted) != sorted(expected):
            raise Violation(f"pages {evicted} were evicted, least recently used are {expected}")
        self.num_evicted += len(evicted)
        return evicted

    def _remove(self, node: Node) -> None:
        super()._remove(node)
        self._let_go.pop(node, None)


def check_committed(running: list[Sequence], kv: KVManager) -> None:
    """A page is in the tree as soon as it is full and computed, and not before."""
    if kv.tree is None:
        return
    for sequence in running:
        assert sequence.pages is not None
        if sequence.pages.num_shared != sequence.num_computed // kv.page_size:
            raise Violation(
                f"{sequence.request.request_id} computed {sequence.num_computed} tokens and has "
                f"{sequence.pages.num_shared} pages of {kv.page_size} in the tree"
            )


def check_page_map(running: list[Sequence], kv: KVManager) -> None:
    """The map shows every page where it is, by a second account: one page at a time."""
    owners = dict.fromkeys(kv.pool.free_ids(), FREE)
    for node in kv.tree.nodes() if kv.tree else ():
        owners |= dict.fromkeys(node.blocks, CACHED_HELD if node.refs else CACHED_IDLE)
    live = []
    for sequence in running:
        assert sequence.pages is not None
        owners |= dict.fromkeys(sequence.pages.block_ids[sequence.pages.num_shared :], sequence.slot)
        live.append((sequence.slot, sequence.pages))
    shown = [code for code, count in viewing.page_map(kv, live) for _ in range(count)]
    if shown != [owners.get(page) for page in range(kv.pool.num_total)]:
        raise Violation(f"the map shows {shown}, the pages are {owners}")


def check_outline(tree: RadixTree) -> None:
    """Uncut, it has every node once, behind its parent; cut, it is the beginning of that."""
    whole = viewing.outline(tree, tree.num_nodes + 1)
    nodes = [node for node in tree.nodes() if node.parent is not None]
    expected = {
        node.blocks[0]: (node.parent.blocks[0] if node.parent and node.parent.blocks else None, node.refs)
        for node in nodes
    }
    if {node.id: (node.parent, node.holders) for node in whole.nodes} != expected or whole.left_out:
        raise Violation(f"the outline {whole} is not that of the tree")
    cut = viewing.outline(tree, len(nodes) // 2)
    if cut.nodes != whole.nodes[: len(nodes) // 2] or cut.left_out != len(nodes) - len(cut.nodes):
        raise Violation(f"the outline {whole} was cut to {cut}")
