"""The free list of KV blocks."""

from array import array
from collections.abc import Sequence

from octavo.errors import CapacityError


class BlockPool:
    """A stack of free block ids. Used by KVManager only.

    Last in, first out: the block returned last is most likely still in the processor's caches.
    """

    __slots__ = ("_free", "num_total")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise CapacityError(f"the KV cache needs at least one block, got {num_blocks}")
        self.num_total = num_blocks
        self._free = array("i", range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Remove and return `count` block ids. The caller has checked that they are free."""
        if count == 0:
            return []
        assert count <= len(self._free), "more blocks taken than are free"
        taken = self._free[-count:].tolist()
        del self._free[-count:]
        taken.reverse()
        return taken

    def give(self, block_ids: Sequence[int]) -> None:
        self._free.extend(reversed(block_ids))

    def free_ids(self) -> "array[int]":
        """Return a copy of the free list, for checks and views."""
        return self._free[:]
