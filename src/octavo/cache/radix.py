"""The prefix tree: which pages hold the KV of which tokens.

An edge is a run of whole pages: their tokens, packed to bytes, and their block ids. Lookups compare the
tokens themselves; a hash only finds the candidate. One root per salt, so that tenants never share.

                        root(salt)
                       /          \\
        [t0..t31 | t32..t63]      [u0..u31]          node = tokens + blocks, page by page
             /          \\
       [t64..t95]   [v64..v95]

A sequence that uses a node holds a reference on it and on every ancestor, so a node without references
has only descendants without references. Those nodes are *idle*: they wait to be used again or evicted.

Invariant of the idle list: it is in order of last use, and a node stands behind all of its descendants
(`release` walks from the leaf to the root). So its first node is a leaf, and it is the least recently
used one: eviction looks at nothing else. The order is the tree's logical clock; no wall clock is read.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

TOKEN_BYTES = 4


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()


class Node:
    """Mutated by RadixTree only. Others hold it as a ticket for the pages up to its end."""

    __slots__ = ("blocks", "children", "parent", "refs", "tokens")

    def __init__(self, parent: "Node | None", tokens: bytearray, blocks: list[int], refs: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.blocks = blocks
        self.refs = refs
        self.children: dict[bytes, Node] = {}  # by the first page's tokens


class RadixTree:
    """Touched by KVManager only."""

    def __init__(self, page_size: int) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._salts: dict[Node, str] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.num_blocks = 0
        self.num_idle_blocks = 0  # could be evicted now
        self.num_nodes = 0  # without roots

    def open(self, salt: str) -> Node:
        """The root of a salt, with a reference for the caller."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, bytearray(), [], 0)
            self._salts[root] = salt
        root.refs += 1
        return root

    def has_next(self, node: Node, first_page: bytes) -> bool:
        return first_page in node.children

    def acquire(self, node: Node, key: bytes) -> tuple[Node, list[int]]:
        """Follow `key` (whole pages) from the end of `node`, which the caller holds, as far as the tree goes.

        The caller then holds the node returned in place of `node`.
        """
        held, at, found = node, 0, []
        while at < len(key):
            child = node.children.get(key[at : at + self._page_bytes])
            if child is None:
                break
            same = self._common_pages(child, key, at)
            if same < len(child.blocks):
                child = self._split(child, same)
            found += child.blocks
            at += same * self._page_bytes
            node = child
        self._reference(node, held)
        return node, found

    def extend(self, node: Node, key: bytes, blocks: list[int]) -> tuple[Node, list[int]]:
        """Put the pages `key` with `blocks` behind `node`, which the caller holds.

        Returns the node the caller then holds, and the blocks of the first pages where the tree already
        had them: there the tree keeps its own, and the caller's are duplicates to be given back.
        """
        node, existing = self.acquire(node, key)
        new_blocks = blocks[len(existing) :]
        if not new_blocks:
            return node, existing
        new_tokens = key[len(existing) * self._page_bytes :]
        # A node that nobody else holds may grow in place; others of a shared one know its end.
        if node.refs == 1 and not node.children and node.parent is not None:
            node.tokens += new_tokens
            node.blocks += new_blocks
        else:
            child = Node(node, bytearray(new_tokens), new_blocks, 1)
            node.children[new_tokens[: self._page_bytes]] = child
            self.num_nodes += 1
            node = child
        self.num_blocks += len(new_blocks)
        return node, existing

    def release(self, node: Node) -> None:
        """Drop the caller's reference on `node` and its ancestors."""
        at: Node | None = node
        while at is not None:
            at.refs -= 1
            if at.refs == 0 and at.parent is not None:
                self._idle[at] = None
                self.num_idle_blocks += len(at.blocks)
            top, at = at, at.parent
        self._drop_root_if_unused(top)

    def evict(self, count: int) -> list[int]:
        """Forget the `count` least recently used idle pages, the last of an edge first, and return them."""
        evicted: list[int] = []
        while len(evicted) < count and self._idle:
            node = next(iter(self._idle))
            number = min(count - len(evicted), len(node.blocks))
            evicted += node.blocks[-number:]
            if number < len(node.blocks):
                del node.blocks[-number:]
                del node.tokens[-number * self._page_bytes :]
            else:
                self._remove(node)
        self.num_blocks -= len(evicted)
        self.num_idle_blocks -= len(evicted)
        return evicted

    @property
    def roots(self) -> Collection[Node]:
        """One per salt in use, the oldest first; to look at only."""
        return self._roots.values()

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included; for checks."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def idle_nodes(self) -> list[Node]:
        """In order of last use, for checks."""
        return list(self._idle)

    def _common_pages(self, child: Node, key: bytes, at: int) -> int:
        if child.tokens == key[at : at + len(child.tokens)]:
            return len(child.blocks)
        size, same = self._page_bytes, 1  # the first page matched: it is the key in `children`
        while child.tokens[same * size : (same + 1) * size] == key[at + same * size : at + (same + 1) * size]:
            same += 1
        return same

    def _split(self, node: Node, pages: int) -> Node:
        """Cut `node` after `pages` and return the upper part.

        The lower part stays the same object: whoever holds it holds the same end. The caller references
        the upper part at once, so it need not enter the idle list.
        """
        size, parent = self._page_bytes, node.parent
        assert parent is not None
        upper = Node(parent, node.tokens[: pages * size], node.blocks[:pages], node.refs)
        parent.children[bytes(upper.tokens[:size])] = upper
        del node.tokens[: pages * size]
        del node.blocks[:pages]
        upper.children[bytes(node.tokens[:size])] = node
        node.parent = upper
        self.num_nodes += 1
        return upper

    def _reference(self, node: Node, held: Node) -> None:
        """Reference `node` and its ancestors below `held`."""
        at = node
        while at is not held:
            if at.refs == 0:
                self._idle.pop(at, None)
                self.num_idle_blocks -= len(at.blocks)
            at.refs += 1
            assert at.parent is not None
            at = at.parent

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        assert not node.children, "the first idle node is a leaf"
        del parent.children[bytes(node.tokens[: self._page_bytes])]
        del self._idle[node]
        self.num_nodes -= 1
        node.parent = None
        if parent.parent is None:
            self._drop_root_if_unused(parent)

    def _drop_root_if_unused(self, root: Node) -> None:
        if root.refs == 0 and not root.children:
            del self._roots[self._salts.pop(root)]
