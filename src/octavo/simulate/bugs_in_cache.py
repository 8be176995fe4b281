"""Bugs to plant in the free list, the KV manager and the prefix tree."""

from octavo.cache.block_pool import BlockPool
from octavo.cache.kv_manager import KVManager
from octavo.cache.radix import RadixTree
from octavo.simulate.planted_bug import PlantedBug

BLOCK_POOL_BUGS = (
    PlantedBug(
        "a taken block stays in the free list",
        BlockPool,
        "take",
        "del self._free[-count:]",
        "del self._free[len(self._free) - count + (count > 2) :]",
    ),
    PlantedBug(
        "blocks after the third are lost when returned",
        BlockPool,
        "give",
        "reversed(block_ids)",
        "reversed(block_ids[:3])",
    ),
)

KV_MANAGER_BUGS = (
    PlantedBug(
        "prefix match covers the whole prompt",
        KVManager,
        "_take_shared",
        "(len(token_ids) - 1) // size",
        "len(token_ids) // size",
    ),
    PlantedBug(
        "adoption overwrites private blocks",
        KVManager,
        "adopt",
        "if start != table.num_shared * size or len(table.block_ids) != table.num_shared:",
        "if start < table.num_shared * size:",
    ),
    PlantedBug(
        "a partly filled block is committed",
        KVManager,
        "commit",
        "num_computed // self.block_size",
        "self.blocks_for(num_computed)",
    ),
    PlantedBug(
        "commit is a block late at a block boundary",
        KVManager,
        "commit",
        "num_computed // self.block_size",
        "(num_computed - 1) // self.block_size",
    ),
    PlantedBug(
        "duplicate blocks not returned", KVManager, "commit", "self.pool.give(own[: len(existing)])", "pass"
    ),
    PlantedBug(
        "the blocks of the tree returned instead of the duplicates",
        KVManager,
        "commit",
        "self.pool.give(own[: len(existing)])",
        "self.pool.give(existing)",
    ),
    PlantedBug(
        "replaced blocks not sent to the workers",
        KVManager,
        "commit",
        "table.num_sent = min(table.num_sent, shared)",
        "pass",
    ),
    PlantedBug(
        "replaced blocks sent to the workers except the first",
        KVManager,
        "commit",
        "min(table.num_sent, shared)",
        "min(table.num_sent, shared + 1)",
    ),
    PlantedBug(
        "block table keeps freed duplicates",
        KVManager,
        "commit",
        "table.block_ids[shared : shared + len(existing)] = existing",
        "pass",
    ),
    PlantedBug(
        "double free: release also returns shared blocks",
        KVManager,
        "release",
        "table.block_ids[table.num_shared :]",
        "table.block_ids",
    ),
    PlantedBug(
        "references not dropped on release", KVManager, "release", "self.tree.release(table.node)", "pass"
    ),
    PlantedBug(
        "one block too few for a partly filled block",
        KVManager,
        "blocks_for",
        "-(-num_tokens // self.block_size)",
        "max(1, num_tokens // self.block_size)",
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
        "a node in use is evicted",
        RadixTree,
        "release",
        "if at.refs == 0 and at.parent is not None:",
        "if at.refs <= 1 and at.parent is not None:",
    ),
    PlantedBug(
        "a block still counts as idle after it was referenced",
        RadixTree,
        "_reference",
        "self.num_idle_blocks -= len(at.blocks)",
        "pass",
    ),
    PlantedBug(
        "split keeps the wrong half",
        RadixTree,
        "_split",
        "del node.blocks[:num_blocks]",
        "del node.blocks[num_blocks:]",
    ),
    PlantedBug(
        "split loses references",
        RadixTree,
        "_split",
        "node.blocks[:num_blocks], node.refs)",
        "node.blocks[:num_blocks], 0)",
    ),
    PlantedBug("split does not update the parent", RadixTree, "_split", "node.parent = upper", "pass"),
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
        "new blocks appended with the tokens of existing ones",
        RadixTree,
        "extend",
        "new_tokens = key[len(existing) * self._block_bytes :]",
        "new_tokens = key[: len(new_blocks) * self._block_bytes]",
    ),
    PlantedBug(
        "only the first block of an edge is compared",
        RadixTree,
        "_common_blocks",
        "if child.tokens == key[at : at + len(child.tokens)]:",
        "if len(key) - at >= len(child.tokens):",
    ),
    PlantedBug(
        "eviction takes the most recently used leaf",
        RadixTree,
        "evict",
        "next(iter(self._idle))",
        "next((n for n in reversed(self._idle) if not n.children), next(iter(self._idle)))",
    ),
    PlantedBug(
        "eviction removes the beginning of an edge",
        RadixTree,
        "evict",
        "evicted += node.blocks[-number:]",
        "evicted += node.blocks[:number]",
    ),
    PlantedBug(
        "a released node moves to the front of the idle order",
        RadixTree,
        "release",
        "self._idle[at] = None",
        "self._idle[at] = None\n            self._idle.move_to_end(at, last=False)",
    ),
    PlantedBug(
        "an evicted leaf can still be found",
        RadixTree,
        "_remove",
        "del parent.children[bytes(node.tokens[: self._block_bytes])]",
        "pass",
    ),
)
