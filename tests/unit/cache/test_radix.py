"""The prefix tree by example. Blocks hold two tokens; block ids show where they belong."""

from typing import Any, SupportsIndex

from octavo.cache.radix import Node, RadixTree, pack_tokens


def key(tokens: str) -> bytes:
    return pack_tokens([ord(letter) for letter in tokens])


def insert(tree: RadixTree, tokens: str, blocks: list[int], salt: str = "") -> Node:
    """Cache `tokens`, one letter each, and keep holding them."""
    node, existing = tree.extend(tree.open(salt), key(tokens), blocks)
    assert not existing
    return node


def lookup(tree: RadixTree, tokens: str, salt: str = "") -> list[int]:
    """Return the cached blocks without holding them."""
    node, found = tree.acquire(tree.open(salt), key(tokens))
    tree.release(node)
    return found


def test_hits_are_whole_blocks() -> None:
    tree = RadixTree(2)
    tree.release(insert(tree, "aabbcc", [1, 2, 3]))
    assert lookup(tree, "aabbcc") == [1, 2, 3]
    assert lookup(tree, "aabbcx") == [1, 2]
    assert lookup(tree, "aabxcc") == [1]
    assert lookup(tree, "abbbcc") == []


def test_different_salts_never_share_blocks() -> None:
    tree = RadixTree(2)
    tree.release(insert(tree, "aabb", [1, 2], salt="one"))
    assert lookup(tree, "aabb", salt="two") == []
    assert lookup(tree, "aabb", salt="one") == [1, 2]


def test_a_split_keeps_both_ends_and_their_holders() -> None:
    tree = RadixTree(2)
    whole = insert(tree, "aabbcc", [1, 2, 3])
    upper, found = tree.acquire(tree.open(""), key("aabb"))
    assert found == [1, 2]
    assert whole.parent is upper
    assert (whole.blocks, upper.blocks) == ([3], [1, 2])
    assert (whole.refs, upper.refs) == (1, 2)
    tree.release(whole)
    assert tree.num_idle_blocks == 1  # the upper part is still held
    assert tree.evict(3) == [3]


def test_duplicates_are_returned_and_the_rest_is_kept() -> None:
    tree = RadixTree(2)
    first = insert(tree, "aabb", [1, 2])
    node, existing = tree.extend(tree.open(""), key("aabbcc"), [7, 8, 9])
    assert existing == [1, 2]
    assert node.parent is first
    assert node.blocks == [9]
    assert tree.num_blocks == 3


def test_a_node_grows_in_place_only_for_its_sole_holder() -> None:
    tree = RadixTree(2)
    mine = insert(tree, "aa", [1])
    grown, _ = tree.extend(mine, key("bb"), [2])
    assert grown is mine
    tree.acquire(tree.open(""), key("aabb"))  # now there is a second holder
    grown, _ = tree.extend(mine, key("cc"), [3])
    assert grown is not mine
    assert grown.parent is mine
    assert mine.blocks == [1, 2]


def test_least_recently_used_blocks_are_evicted_first_from_the_end_of_an_edge() -> None:
    tree = RadixTree(2)
    for tokens, blocks in (("aabb", [1, 2]), ("ccdd", [3, 4]), ("eeff", [5, 6])):
        tree.release(insert(tree, tokens, blocks))
    lookup(tree, "aa")  # used again, but only its first block
    assert tree.evict(1) == [2]
    assert tree.evict(3) == [3, 4, 6]
    assert tree.evict(5) == [5, 1]
    assert (tree.num_blocks, tree.num_idle_blocks, list(tree.nodes())) == (0, 0, [])


def test_held_blocks_are_never_evicted() -> None:
    tree = RadixTree(2)
    tree.release(insert(tree, "aabb", [1, 2]))
    node, _ = tree.acquire(tree.open(""), key("aa"))
    assert tree.evict(2) == [2]
    tree.release(node)
    assert tree.evict(2) == [1]


class Colliding(bytes):
    """All keys and slices of keys have the same hash, so only a comparison of tokens distinguishes them."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes | bytearray) and bytes(self).__eq__(bytes(other))

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        item = super().__getitem__(index)
        return Colliding(item) if isinstance(item, bytes) else item


def test_tokens_are_compared_when_hashes_collide() -> None:
    tree = RadixTree(2)
    for letters, block in (("aa", 1), ("bb", 2), ("cc", 3)):
        node, existing = tree.extend(tree.open(""), Colliding(key(letters)), [block])
        assert existing == []
        tree.release(node)
    assert hash(Colliding(key("aa"))) == hash(Colliding(key("bb")))
    for letters, expected in (("aa", [1]), ("bb", [2]), ("dd", [])):
        node, found = tree.acquire(tree.open(""), Colliding(key(letters)))
        assert found == expected
        tree.release(node)
