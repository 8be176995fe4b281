"""Keys of blocks, and the index of which replica has which block."""

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.library import KernelLibrary
from octavo.kernels.prefix_index import BlockHasher, PrefixIndex

MASK = (1 << 64) - 1
MAX_GAP = 4  # as in prefix_index.h
MAX_HOLDERS = 12


def siphash(low: int, high: int, data: bytes) -> int:
    """SipHash-2-4, from its definition."""

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    def rounds(v: list[int], count: int) -> None:
        for _ in range(count):
            for a, b, c, d, s, t in ((0, 1, 2, 3, 13, 16), (2, 1, 0, 3, 17, 21)):
                v[a], v[c] = (v[a] + v[b]) & MASK, (v[c] + v[d]) & MASK
                v[b], v[d] = rotated(v[b], s) ^ v[a], rotated(v[d], t) ^ v[c]
                v[a] = rotated(v[a], 32)

    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def test_the_reference_is_siphash() -> None:
    low, high = struct.unpack("<2Q", bytes(range(16)))
    assert siphash(low, high, b"") == 0x726FDB47DD0E0E31  # from the authors' test vectors
    assert siphash(low, high, bytes(range(15))) == 0xA129CA6149BE45E5


@given(salt=st.text(max_size=20), block_size=st.integers(1, 40), data=st.data())
def test_keys_are_chained_hashes(
    library: KernelLibrary, salt: str, block_size: int, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, (1 << 31) - 1), max_size=4 * block_size))
    hasher = BlockHasher(library, "fingerprint", block_size)
    low, high = hasher._hash_key
    expected = [siphash(low, high, salt.encode())]
    for start in range(0, len(ids) - block_size + 1, block_size):
        block = struct.pack(f"<Q{block_size}i", expected[-1], *ids[start : start + block_size])
        expected.append(siphash(low, high, block))
    keys = hasher.prompt_keys(salt, ids)
    assert [hasher.root(salt), *keys] == expected
    middle = len(keys) // 2
    rest = array("i", ids[middle * block_size :]).tobytes()
    assert hasher.keys(expected[middle], rest) == keys[middle:], "keys continue from any block"


class ExactIndex:
    """The same interface without a limit: what the index returns as long as it has room."""

    def __init__(self) -> None:
        self._keys: dict[int, set[int]] = {}

    def add(self, slot: int, keys: "array[int]") -> None:
        self._keys.setdefault(slot, set()).update(keys)

    def remove(self, slot: int, keys: "array[int]") -> None:
        self._keys.get(slot, set()).difference_update(keys)

    def forget(self, slot: int) -> None:
        self._keys.pop(slot, None)

    def match(self, keys: "array[int]") -> set[tuple[int, int]]:
        depths: dict[int, int] = {}
        gap = 0
        for i, key in enumerate(keys):
            holders = [slot for slot, known in self._keys.items() if key in known]
            depths |= dict.fromkeys(holders, i + 1)
            gap = 0 if holders else gap + 1
            if gap == MAX_GAP:
                break
        return set(depths.items())


KEYS = st.lists(st.integers(1, 40), max_size=12).map(
    # Keys are hashes, so they are spread over the table.
    lambda numbers: array("Q", [number * 0x9E3779B97F4A7C15 & MASK for number in numbers])
)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "add", "remove", "forget", "match"]), st.integers(0, 9), KEYS),
        max_size=60,
    )
)
def test_with_enough_room_the_index_is_exact(
    library: KernelLibrary, steps: list[tuple[str, int, "array[int]"]]
) -> None:
    index, exact = PrefixIndex(library, 1 << 14), ExactIndex()
    slots = [0, 1, 2, 3, 255, 256, 1000, 32768, 65534, 65535]  # fewer than MAX_HOLDERS
    for operation, number, keys in steps:
        slot = slots[number]
        if operation == "match":
            hits = index.match(keys, 10)
            assert set(hits) == exact.match(keys)
            assert [depth for _, depth in hits] == sorted((depth for _, depth in hits), reverse=True)
        elif operation == "forget":
            index.forget(slot)
            exact.forget(slot)
        else:
            getattr(index, operation)(slot, keys)
            getattr(exact, operation)(slot, keys)


def hashed(start: int, count: int) -> "array[int]":
    return array("Q", [(number * 0x9E3779B97F4A7C15 + 1) & MASK for number in range(start, start + count)])


def test_a_full_index_keeps_what_was_used_last(library: KernelLibrary) -> None:
    """It was given 10 times as many blocks as it has room for."""
    index = PrefixIndex(library, 1 << 12)
    used = hashed(0, 100)
    for start in range(1000, 41_000, 100):
        index.add(1, hashed(start, 100))
        index.add(2, used)
    assert index.match(used, 8) == [(2, 100)]
    newest = hashed(40_000, 1000)
    found = sum(index.match(newest[i : i + 1], 8) == [(1, 1)] for i in range(1000))
    assert found > 950
    oldest = hashed(1000, 1000)
    assert sum(bool(index.match(oldest[i : i + 1], 8)) for i in range(1000)) < 50


def test_a_block_that_all_have_does_not_displace_others(library: KernelLibrary) -> None:
    index = PrefixIndex(library, 32)  # one window
    other = hashed(7, 1)
    index.add(0, other)
    hot = hashed(8, 1)
    for slot in range(1, 1000):
        index.add(slot, hot)
    assert len(index.match(hot, 64)) == MAX_HOLDERS
    assert index.match(other, 8) == [(0, 1)]


def test_equal_hits_are_in_an_order_of_their_own_for_each_request(library: KernelLibrary) -> None:
    index = PrefixIndex(library, 1 << 12)
    for slot in range(MAX_HOLDERS):
        index.add(slot, hashed(0, 3))
    firsts = [
        index.match(hashed(0, 3), 1, tie=number * 0x123456789ABCDEF & MASK)[0][0] for number in range(300)
    ]
    assert set(firsts) == set(range(MAX_HOLDERS))


def test_invalid_arguments_are_rejected(library: KernelLibrary) -> None:
    for num_entries in (0, 16, 100, -1):
        with pytest.raises(ValueError, match="native kernel"):
            PrefixIndex(library, num_entries)
    index = PrefixIndex(library, 32)
    for slot in (-1, 1 << 16):
        with pytest.raises(ValueError, match="native kernel"):
            index.add(slot, hashed(0, 1))
        with pytest.raises(ValueError, match="native kernel"):
            index.forget(slot)
    with pytest.raises(ValueError, match="native kernel"):
        index.match(hashed(0, 1), 0)
    hash_key, keys = array("Q", (1, 2)), array("Q", (7,))
    addresses = hash_key.buffer_info()[0], keys.buffer_info()[0]
    function = library.functions.ov_prefix_keys
    assert function(None, 1, b"1234", 1, 1, addresses[1]), "no key"
    assert function(addresses[0], 1, None, 1, 1, addresses[1]), "no tokens"
    assert function(addresses[0], 1, b"1234", 1, 0, addresses[1]), "empty blocks"
    assert function(addresses[0], 1, b"1234", -1, 1, addresses[1]), "a negative number of blocks"
    assert keys[0] == 7, "what is rejected writes nothing"
