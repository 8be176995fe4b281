"""The prefix tree: which blocks hold the KV of which tokens.

An edge is a run of whole blocks: their tokens, packed to bytes, and their block ids. Lookups compare the
tokens themselves; a hash only finds the candidate. Each salt has its own root, so tenants never share blocks.

                        root(salt)
                       /          \\
        [t0..t31 | t32..t63]      [u0..u31]          node = tokens + blocks, block by block
             /          \\
       [t64..t95]   [v64..v95]

A sequence that uses a node holds a reference on it and on every ancestor, so a node without references
has only descendants without references. Those nodes are *idle*: they wait to be used again or evicted.

Invariant of the idle list: it is in order of last use, and a node comes after all of its descendants
(`release` walks from the leaf to the root). So its first node is a leaf and the least recently used one, and
eviction looks at nothing else. The order is the tree's logical clock; no wall clock is read.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence

from octavo.cache.journal import PrefixJournal

TOKEN_BYTES = 4


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()


class Node:
    """Mutated by RadixTree only. Others use it as a handle for the blocks up to its end."""

    __slots__ = ("blocks", "children", "keys", "parent", "refs", "tokens")

    def __init__(self, parent: "Node | None", tokens: bytearray, blocks: list[int], refs: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.blocks = blocks
        self.refs = refs
        self.children: dict[bytes, Node] = {}  # by the tokens of their first block
        self.keys = array("Q")  # of the blocks; of a root, that of its salt; empty without a journal


class RadixTree:
    """Used by KVManager only."""

    def __init__(self, block_size: int, journal: PrefixJournal | None = None) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._journal = journal
        self._roots: dict[str, Node] = {}
        self._salts: dict[Node, str] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self.num_blocks = 0
        self.num_idle_blocks = 0  # blocks that may be evicted
        self.num_nodes = 0  # not counting roots

    def open(self, salt: str) -> Node:
        """Return the root of a salt, with a reference for the caller."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, bytearray(), [], 0)
            self._salts[root] = salt
            if self._journal is not None:
                root.keys.append(self._journal.maker.root(salt))
        root.refs += 1
        return root

    def has_next(self, node: Node, first_block: bytes) -> bool:
        return first_block in node.children

    def acquire(self, node: Node, key: bytes) -> tuple[Node, list[int]]:
        """Follow `key` (whole blocks) from the end of `node`, which the caller holds, as far as possible.

        Return the last node, which the caller then holds in place of `node`, and the blocks on the way.
        """
        held, at, found = node, 0, []
        while at < len(key):
            child = node.children.get(key[at : at + self._block_bytes])
            if child is None:
                break
            same = self._common_blocks(child, key, at)
            if same < len(child.blocks):
                child = self._split(child, same)
            found += child.blocks
            at += same * self._block_bytes
            node = child
        self._reference(node, held)
        return node, found

    def extend(self, node: Node, key: bytes, blocks: list[int]) -> tuple[Node, list[int]]:
        """Append `blocks` with the tokens `key` to `node`, which the caller holds.

        Return the node that the caller then holds, and the blocks that the tree already had. The tree keeps
        those; the caller's are duplicates to be returned to the free list.
        """
        node, existing = self.acquire(node, key)
        new_blocks = blocks[len(existing) :]
        if not new_blocks:
            return node, existing
        new_tokens = key[len(existing) * self._block_bytes :]
        new_keys = array("Q") if self._journal is None else self._journal.added(node.keys[-1], new_tokens)
        # A node without other holders may grow in place; other holders rely on its end.
        if node.refs == 1 and not node.children and node.parent is not None:
            node.tokens += new_tokens
            node.blocks += new_blocks
            node.keys += new_keys
        else:
            child = Node(node, bytearray(new_tokens), new_blocks, 1)
            child.keys = new_keys
            node.children[new_tokens[: self._block_bytes]] = child
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
        """Remove and return the `count` least recently used idle blocks, the last of an edge first."""
        evicted: list[int] = []
        while len(evicted) < count and self._idle:
            node = next(iter(self._idle))
            number = min(count - len(evicted), len(node.blocks))
            evicted += node.blocks[-number:]
            if self._journal is not None:
                self._journal.removed(node.keys[-number:])
                del node.keys[-number:]
            if number < len(node.blocks):
                del node.blocks[-number:]
                del node.tokens[-number * self._block_bytes :]
            else:
                self._remove(node)
        self.num_blocks -= len(evicted)
        self.num_idle_blocks -= len(evicted)
        return evicted

    @property
    def roots(self) -> Collection[Node]:
        """The roots of all salts in use, oldest first. Read-only."""
        return self._roots.values()

    def nodes(self) -> Iterator[Node]:
        """Yield every node, including roots; for checks."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def keys(self) -> "array[int]":
        """Return the keys of all blocks, in no order; none without a journal."""
        keys = array("Q")
        for node in self.nodes():
            if node.parent is not None:
                keys += node.keys
        return keys

    def idle_nodes(self) -> list[Node]:
        """Return the idle nodes in order of last use; for checks."""
        return list(self._idle)

    def _common_blocks(self, child: Node, key: bytes, at: int) -> int:
        if child.tokens == key[at : at + len(child.tokens)]:
            return len(child.blocks)
        size, same = self._block_bytes, 1  # the first block matched: it is the key in `children`
        while child.tokens[same * size : (same + 1) * size] == key[at + same * size : at + (same + 1) * size]:
            same += 1
        return same

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Split `node` after `num_blocks` and return the upper part.

        The lower part stays the same object, so for its holders the end does not change. The caller
        references the upper part at once, so it need not enter the idle list.
        """
        size, parent = self._block_bytes, node.parent
        assert parent is not None
        upper = Node(parent, node.tokens[: num_blocks * size], node.blocks[:num_blocks], node.refs)
        parent.children[bytes(upper.tokens[:size])] = upper
        upper.keys = node.keys[:num_blocks]
        del node.tokens[: num_blocks * size]
        del node.blocks[:num_blocks]
        del node.keys[:num_blocks]
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
        del parent.children[bytes(node.tokens[: self._block_bytes])]
        del self._idle[node]
        self.num_nodes -= 1
        node.parent = None
        if parent.parent is None:
            self._drop_root_if_unused(parent)

    def _drop_root_if_unused(self, root: Node) -> None:
        if root.refs == 0 and not root.children:
            del self._roots[self._salts.pop(root)]
