"""Bugs to plant in the free list, the prefix tree and the manager of KV pages."""

from octavo.cache.block_pool import BlockPool
from octavo.cache.kv_manager import KVManager
from octavo.cache.radix import RadixTree
from octavo.simulate.planted_bug import PlantedBug

BLOCK_POOL_BUGS = (
    PlantedBug(
        "a taken page stays in the free list",
        BlockPool,
        "take",
        "del self._free[-count:]",
        "del self._free[len(self._free) - count + (count > 2) :]",
    ),
    PlantedBug(
        "the last page given back is lost",
        BlockPool,
        "give",
        "reversed(block_ids)",
        "reversed(block_ids[:3])",
    ),
)

KV_MANAGER_BUGS = (
    PlantedBug(
        "whole prompt matched",
        KVManager,
        "_take_shared",
        "(len(token_ids) - 1) // size",
        "len(token_ids) // size",
    ),
    PlantedBug(
        "adoption over private work",
        KVManager,
        "adopt",
        "if start != pages.num_shared * size or len(pages.block_ids) != pages.num_shared:",
        "if start < pages.num_shared * size:",
    ),
    PlantedBug(
        "cached before computed: a page that is not full is committed",
        KVManager,
        "commit",
        "num_computed // self.page_size",
        "self.pages_for(num_computed)",
    ),
    PlantedBug(
        "commit is a page late at a page border",
        KVManager,
        "commit",
        "num_computed // self.page_size",
        "(num_computed - 1) // self.page_size",
    ),
    PlantedBug(
        "duplicate pages not given back", KVManager, "commit", "self.pool.give(own[: len(existing)])", "pass"
    ),
    PlantedBug(
        "the tree's own pages given back instead of the duplicates",
        KVManager,
        "commit",
        "self.pool.give(own[: len(existing)])",
        "self.pool.give(existing)",
    ),
    PlantedBug(
        "workers not told of swapped pages",
        KVManager,
        "commit",
        "pages.num_told = min(pages.num_told, shared)",
        "pass",
    ),
    PlantedBug(
        "workers told of swapped pages a page too late",
        KVManager,
        "commit",
        "min(pages.num_told, shared)",
        "min(pages.num_told, shared + 1)",
    ),
    PlantedBug(
        "table keeps its duplicates, which are free",
        KVManager,
        "commit",
        "pages.block_ids[shared : shared + len(existing)] = existing",
        "pass",
    ),
    PlantedBug(
        "double free: a release gives shared pages back too",
        KVManager,
        "release",
        "pages.block_ids[pages.num_shared :]",
        "pages.block_ids",
    ),
    PlantedBug(
        "references not dropped on release", KVManager, "release", "self.tree.release(pages.node)", "pass"
    ),
    PlantedBug(
        "one page too few at a page border",
        KVManager,
        "pages_for",
        "-(-num_tokens // self.page_size)",
        "max(1, num_tokens // self.page_size)",
    ),
)

RADIX_BUGS = (
    PlantedBug(
        "missing salt",
        RadixTree,
        "open",
        "root = self._roots.get(salt)",
        "salt = ''\n    root = self._roots.get(salt)",
    ),
    PlantedBug(
        "missing parent reference",
        RadixTree,
        "_reference",
        "        at.refs += 1",
        "        at.refs += at is node",
    ),
    PlantedBug(
        "evicted in use",
        RadixTree,
        "release",
        "if at.refs == 0 and at.parent is not None:",
        "if at.refs <= 1 and at.parent is not None:",
    ),
    PlantedBug(
        "an idle page counts as such after it was taken",
        RadixTree,
        "_reference",
        "self.num_idle_blocks -= len(at.blocks)",
        "pass",
    ),
    PlantedBug(
        "split keeps the wrong half",
        RadixTree,
        "_split",
        "del node.blocks[:pages]",
        "del node.blocks[pages:]",
    ),
    PlantedBug(
        "split loses references",
        RadixTree,
        "_split",
        "node.blocks[:pages], node.refs)",
        "node.blocks[:pages], 0)",
    ),
    PlantedBug("split leaves the old parent", RadixTree, "_split", "node.parent = upper", "pass"),
    PlantedBug(
        "a shared node grows in place",
        RadixTree,
        "extend",
        "if node.refs == 1 and not node.children",
        "if not node.children",
    ),
    PlantedBug(
        "a node with children grows in place",
        RadixTree,
        "extend",
        "if node.refs == 1 and not node.children",
        "if node.refs == 1",
    ),
    PlantedBug(
        "new pages appended with the tokens of the old ones",
        RadixTree,
        "extend",
        "new_tokens = key[len(existing) * self._page_bytes :]",
        "new_tokens = key[: len(new_blocks) * self._page_bytes]",
    ),
    PlantedBug(
        "only the first page of an edge is compared",
        RadixTree,
        "_common_pages",
        "if child.tokens == key[at : at + len(child.tokens)]:",
        "if len(key) - at >= len(child.tokens):",
    ),
    PlantedBug(
        "eviction takes the most recently used",
        RadixTree,
        "evict",
        "next(iter(self._idle))",
        "next((n for n in reversed(self._idle) if not n.children), next(iter(self._idle)))",
    ),
    PlantedBug(
        "eviction cuts an edge at its beginning",
        RadixTree,
        "evict",
        "evicted += node.blocks[-number:]",
        "evicted += node.blocks[:number]",
    ),
    PlantedBug(
        "idle order broken: a released node waits at the front",
        RadixTree,
        "release",
        "self._idle[at] = None",
        "self._idle[at] = None\n            self._idle.move_to_end(at, last=False)",
    ),
    PlantedBug(
        "an evicted leaf can still be found",
        RadixTree,
        "_remove",
        "del parent.children[bytes(node.tokens[: self._page_bytes])]",
        "pass",
    ),
)
