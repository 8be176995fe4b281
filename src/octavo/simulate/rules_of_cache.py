"""What must hold for the prefix tree beyond its own check: pages leave it in order of last use."""

from octavo.cache.kv_manager import KVManager
from octavo.cache.radix import Node, RadixTree
from octavo.schedule.sequence import Sequence
from octavo.simulate.ticket import Violation


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
