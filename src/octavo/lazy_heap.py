"""A priority queue that skips entries which are no longer valid."""

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Entry = tuple[Any, int, Item]  # key, number of the push, item


class LazyHeap(Generic[Item]):
    """Entries whose item no longer satisfies `is_live` are skipped, and removed when there are many.

    A removal takes time proportional to the number of entries, but runs only when the queue has doubled since
    the last one: O(1) amortised per entry.
    """

    def __init__(self, is_live: Callable[[Item], bool]) -> None:
        self._is_live = is_live
        self._entries: list[Entry[Item]] = []
        self._count = 0
        self._sweep_at = 256

    @property
    def entries(self) -> list[Entry[Item]]:
        """The entries in heap order, including those that are no longer live. Read-only."""
        return self._entries

    def push(self, key: Any, item: Item) -> None:
        self._count += 1  # equal keys are popped in order of arrival
        heapq.heappush(self._entries, (key, self._count, item))
        if len(self._entries) > self._sweep_at:
            self._entries = [entry for entry in self._entries if self._is_live(entry[2])]
            heapq.heapify(self._entries)
            self._sweep_at = max(256, 2 * len(self._entries))

    def peek(self) -> Item | None:
        entries = self._entries
        while entries and not self._is_live(entries[0][2]):
            heapq.heappop(entries)
        return entries[0][2] if entries else None

    def pop(self) -> Item:
        item = self.peek()
        assert item is not None, "pop from an empty queue"
        heapq.heappop(self._entries)
        return item
