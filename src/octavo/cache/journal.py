"""What changed in the prefix tree, so that front ends know where a prefix is.

Every block of the tree has a key, which stands for its tokens and all before them (`BlockHasher`). After each
step, the engine sends the keys of added and removed blocks. Changes are numbered, so that a front end notices
when one is missing, and asks for all keys.
"""

from array import array
from typing import Protocol

from octavo.protocol import PrefixChange


class KeyMaker(Protocol):
    """Computes the keys of blocks; `kernels.prefix_index.BlockHasher` is one."""

    def root(self, salt: str) -> int: ...

    def keys(self, parent: int, tokens: bytes) -> "array[int]": ...


class PrefixJournal:
    """Written by RadixTree, emptied by the engine after a step."""

    def __init__(self, maker: KeyMaker) -> None:
        self.maker = maker
        self.sequence = 0  # the number of the last change
        self._is_in_tree: dict[int, bool] = {}  # by key, of blocks that changed; the last change counts

    def added(self, parent: int, tokens: bytes) -> "array[int]":
        """Note blocks that were added after the one with the key `parent`. Return their keys."""
        keys = self.maker.keys(parent, tokens)
        self._is_in_tree.update(dict.fromkeys(keys, True))
        return keys

    def removed(self, keys: "array[int]") -> None:
        self._is_in_tree.update(dict.fromkeys(keys, False))

    def take(self) -> PrefixChange | None:
        """Return what changed since the last call."""
        if not self._is_in_tree:
            return None
        changed, self._is_in_tree = self._is_in_tree, {}
        self.sequence += 1
        return PrefixChange(
            self.sequence,
            array("Q", [key for key, is_in in changed.items() if is_in]).tobytes(),
            array("Q", [key for key, is_in in changed.items() if not is_in]).tobytes(),
        )
