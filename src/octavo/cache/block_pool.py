"""The free list of KV pages."""

from array import array
from collections.abc import Sequence

from octavo.errors import CapacityError


class BlockPool:
    """A stack of free block ids. Touched by KVManager only.

    Last in, first out: the page given back last is the one still warm in the processor's caches.
    """

    __slots__ = ("_free", "num_total")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise CapacityError(f"the KV cache needs at least one page, not {num_blocks}")
        self.num_total = num_blocks
        self._free = array("i", range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """The caller has seen that `count` pages are free."""
        if count == 0:
            return []
        assert count <= len(self._free), "more pages taken than are free"
        taken = self._free[-count:].tolist()
        del self._free[-count:]
        taken.reverse()
        return taken

    def give(self, block_ids: Sequence[int]) -> None:
        self._free.extend(reversed(block_ids))

    def free_ids(self) -> "array[int]":
        """A copy, for checks and views."""
        return self._free[:]
