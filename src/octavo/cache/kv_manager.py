"""Who owns which KV page. The only code that touches both the free list and the prefix tree.

Every page is in exactly one of three places: free, in the tree, or private to one sequence.

    tokens of a sequence   0 ............... num_shared pages ................ len(block_ids) pages
                           |  in the tree, held through `node` |  private to this sequence  |
                           |  always computed                  |  computed, or about to be  |

`begin` and `adopt` find shared pages, `grow` adds private ones, `commit` moves private pages whose KV is
computed into the tree, `release` ends it all. With prefix caching off there is no tree: all is private.
"""

from collections import Counter
from collections.abc import Iterable

from octavo.cache.block_pool import BlockPool
from octavo.cache.radix import Node, RadixTree, pack_tokens


class Pages:
    """The page table of one sequence. Mutated by KVManager only; the scheduler moves `num_told` forward."""

    __slots__ = ("block_ids", "node", "num_shared", "num_told")

    def __init__(self, node: Node | None) -> None:
        self.block_ids: list[int] = []
        self.num_shared = 0
        self.node = node  # the tree node at the end of the shared pages; None without a tree
        self.num_told = 0  # how many leading entries the workers know


class KVManager:
    """Touched by the Scheduler only."""

    def __init__(self, num_blocks: int, page_size: int, *, prefix_caching: bool = True) -> None:
        self.page_size = page_size
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(page_size) if prefix_caching else None

    @property
    def num_available(self) -> int:
        """Pages that can be had without taking one from a sequence."""
        return self.pool.num_free + (self.tree.num_idle_blocks if self.tree else 0)

    @property
    def num_cached(self) -> int:
        return self.tree.num_blocks if self.tree else 0

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def begin(self, token_ids: list[int], salt: str, *, reuse: bool = True) -> Pages:
        """A page table that starts with what the tree has of `token_ids`.

        The last token is never taken from the tree: its logits are what the sequence waits for.
        """
        pages = Pages(self.tree.open(salt) if self.tree else None)
        if reuse:
            self._take_shared(pages, token_ids)
        return pages

    def adopt(self, pages: Pages, token_ids: list[int], num_computed: int) -> int:
        """Take over pages that another sequence committed meanwhile. Returns the tokens gained."""
        if self.tree is None or pages.node is None:
            return 0
        start, size = num_computed, self.page_size
        if start != pages.num_shared * size or len(pages.block_ids) != pages.num_shared:
            return 0  # in the middle of a page: this sequence has private work there
        if start + size >= len(token_ids):
            return 0
        if not self.tree.has_next(pages.node, pack_tokens(token_ids[start : start + size])):
            return 0
        self._take_shared(pages, token_ids)
        return pages.num_shared * size - start

    def grow(self, pages: Pages, num_tokens: int) -> bool:
        """Make the table long enough for `num_tokens`; False, and nothing done, if pages are lacking."""
        missing = self.pages_for(num_tokens) - len(pages.block_ids)
        if missing <= 0:
            return True
        short = missing - self.pool.num_free
        if short > 0:
            if self.tree is None or short > self.tree.num_idle_blocks:
                return False
            self.pool.give(self.tree.evict(short))
        pages.block_ids += self.pool.take(missing)
        return True

    def commit(self, pages: Pages, token_ids: list[int], num_computed: int) -> None:
        """Hand full computed pages to the tree. Called only when their KV is known to be good."""
        full, shared = num_computed // self.page_size, pages.num_shared
        if self.tree is None or pages.node is None or full <= shared:
            return
        key = pack_tokens(token_ids[shared * self.page_size : full * self.page_size])
        own = pages.block_ids[shared:full]
        pages.node, existing = self.tree.extend(pages.node, key, own)
        pages.num_shared = full
        if existing:
            # Somebody computed the same pages in the same step: by the law they hold the same numbers.
            pages.block_ids[shared : shared + len(existing)] = existing
            pages.num_told = min(pages.num_told, shared)
            self.pool.give(own[: len(existing)])

    def release(self, pages: Pages) -> None:
        """The sequence ended or was preempted. What it committed stays in the tree until it is evicted."""
        self.pool.give(pages.block_ids[pages.num_shared :])
        if self.tree is not None and pages.node is not None:
            self.tree.release(pages.node)
        pages.block_ids, pages.num_shared, pages.node, pages.num_told = [], 0, None, 0

    def _take_shared(self, pages: Pages, token_ids: list[int]) -> None:
        if self.tree is None or pages.node is None:
            return
        start, size = pages.num_shared * self.page_size, self.page_size
        end = (len(token_ids) - 1) // size * size
        pages.node, found = self.tree.acquire(pages.node, pack_tokens(token_ids[start:end]))
        pages.block_ids += found
        pages.num_shared += len(found)

    def check(self, live: Iterable[Pages]) -> None:
        """Every rule of this file, asserted. Walks over all pages: for tests, simulation and idle time."""
        live = list(live)
        owned = self.pool.free_ids().tolist()
        for pages in live:
            owned += pages.block_ids[pages.num_shared :]
        nodes = list(self.tree.nodes()) if self.tree else []
        for node in nodes:
            owned += node.blocks
        owned.sort()
        if owned != list(range(self.pool.num_total)):
            twice = [block for block, count in Counter(owned).items() if count > 1]
            raise AssertionError(f"pages owned twice ({twice[:3]}), lost or invented: {len(owned)} are owned")
        if self.tree:
            check_tree(self.tree, nodes, live)


def check_tree(tree: RadixTree, nodes: list[Node], live: list[Pages]) -> None:
    """References equal holders, counts equal sums, idle nodes in order."""
    held: dict[Node, int] = {}
    for pages in live:
        path: list[int] = []
        node = pages.node
        while node is not None:
            held[node] = held.get(node, 0) + 1
            path[:0] = node.blocks
            node = node.parent
        assert path == pages.block_ids[: pages.num_shared], "a table's shared pages are not its node's path"
    rank = {node: index for index, node in enumerate(tree.idle_nodes())}
    num_blocks = num_idle_blocks = 0
    for node in nodes:
        assert node.refs == held.get(node, 0), "references do not equal holders"
        num_blocks += len(node.blocks)
        if node.refs or node.parent is None:
            assert node not in rank, "a node that is held, or a root, is idle"
            assert node.refs or node.children, "an unused root was kept"
        else:
            assert node in rank, "a node that nobody holds is not idle"
            num_idle_blocks += len(node.blocks)
            assert rank[node] < rank.get(node.parent, len(rank)), "an idle node stands behind its descendants"
    assert tree.num_blocks == num_blocks, "the tree's page count is wrong"
    assert tree.num_nodes == len([node for node in nodes if node.parent is not None]), "nodes are miscounted"
    assert tree.num_idle_blocks == num_idle_blocks, "the idle page count is wrong"
    assert len(rank) == sum([not node.refs and node.parent is not None for node in nodes]), (
        "a removed node is idle"
    )
