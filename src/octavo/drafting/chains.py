"""Hash chains over n-grams, as in LZ77: the places that end with the same tokens, newest first.

An address is the place of a token. The key of an address is a hash of the last tokens up to it: every step
shifts the key by so many bits that an older token leaves no trace. So equal n-grams have equal keys, and
since others may too, every candidate is compared token by token.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

NGRAM_LENGTHS = (8, 3)  # of the chains; a candidate of a longer n-gram makes the shorter ones unnecessary
MAX_CANDIDATES = 8  # per chain
MAX_MATCH = 32  # tokens that are compared: a longer match is no better guess

MAX_READ = 2**14  # tokens of a prompt, the last ones: they take about 300 bytes each
BULK_TOKENS = 256  # tokens from which NumPy is faster than a loop
KEY_BITS = 60
KEY_MASK = (1 << KEY_BITS) - 1
FACTOR = 0x9E3779B97F4A7C1  # odd, so it keeps tokens apart, and spreads them over the bits of a key
NO_ADDRESS = -1


class TextMatch(NamedTuple):
    """`text[: at + 1]` ends with the last `length` tokens of a sequence."""

    length: int
    text: Sequence[int]
    at: int


class NgramChains:
    """The newest address of each n-gram of one length. Texts hold the links from there to older ones."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._shift = -(-KEY_BITS // length)
        self._newest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def newest(self, key: int) -> int:
        return self._newest.get(key, NO_ADDRESS)

    def link(self, key: int, token_ids: Sequence[int], address: int, older: "array[int]") -> int:
        """Append to `older` what each token's key led to before, and return the key of the last token.

        The tokens have consecutive addresses from `address` on; `key` is that of the token before.
        """
        if len(token_ids) >= BULK_TOKENS:
            return self._link_many(key, token_ids, address, older)
        newest, shift = self._newest, self._shift
        for at, token_id in enumerate(token_ids, address):
            key = (key << shift ^ token_id * FACTOR) & KEY_MASK
            older.append(newest.get(key, NO_ADDRESS))
            newest[key] = at
        return key

    def unlink(self, token_ids: Sequence[int], address: int) -> None:
        """Forget the addresses of a whole text; a chain that reaches one of them ends there."""
        newest = self._newest
        for at, key in enumerate(self._keys(0, token_ids).tolist(), address):
            if newest.get(key) == at:
                del newest[key]

    def _link_many(self, key: int, token_ids: Sequence[int], address: int, older: "array[int]") -> int:
        """Do the same as `link` faster: sorted by key, each token comes after the one that it leads to."""
        newest, keys = self._newest, self._keys(key, token_ids)
        order = np.argsort(keys, kind="stable")
        is_first = np.append(True, np.diff(keys[order]) != 0)
        links = np.empty(len(keys), dtype=np.int64)
        links[order[1:]] = order[:-1] + address
        first = order[is_first]
        links[first] = [newest.get(one, NO_ADDRESS) for one in keys[first].tolist()] if newest else NO_ADDRESS
        older.frombytes(links.tobytes())
        newest.update(zip(keys.tolist(), range(address, address + len(keys)), strict=True))
        return int(keys[-1])

    def _keys(self, key: int, token_ids: Sequence[int]) -> "npt.NDArray[np.uint64]":
        """Return the keys of tokens that follow one with `key`."""
        alone = np.array(token_ids, dtype=np.uint64) * np.uint64(FACTOR)
        keys = alone.copy()
        for age in range(1, self.length):
            keys[age:] ^= alone[:-age] << np.uint64(self._shift * age)
        for at in range(min(self.length, len(keys))):
            keys[at] ^= np.uint64(key << self._shift * (at + 1) & KEY_MASK)
        return keys & np.uint64(KEY_MASK)


def longest_match(
    text: Sequence[int], candidates: Iterable[tuple[Sequence[int], int]], min_length: int
) -> TextMatch | None:
    """Return the first of the longest matches among the newest candidates.

    A candidate `other, at` matches if `other[: at + 1]` ends as `text` does, and a token follows.
    """
    best: TextMatch | None = None
    for other, at in itertools.islice(candidates, MAX_CANDIDATES):
        length = match_length(text, other, at)
        if length >= min_length and at + 1 < len(other):
            best, min_length = TextMatch(length, other, at), length + 1
        if min_length > MAX_MATCH:
            break
    return best


def match_length(text: Sequence[int], other: Sequence[int], at: int) -> int:
    """Return how many of the last tokens of `text` are those of `other` up to `at`; at most `MAX_MATCH`."""
    end = len(text) - 1
    bound = min(MAX_MATCH, end + 1, at + 1)
    length = 0
    while length < bound and text[end - length] == other[at - length]:
        length += 1
    return length


class SequenceText:
    """The last tokens of one prompt with its answer, and chains of their n-grams.

    Adding a token takes constant time.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._num_skipped = 0  # tokens before these
        self.keys = [0 for _ in NGRAM_LENGTHS]  # of the last token
        self._chains = [NgramChains(length) for length in NGRAM_LENGTHS]
        self._older = [array("q") for _ in NGRAM_LENGTHS]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add what is new in `token_ids`, which begin with the tokens that the text has."""
        start = len(self.token_ids)
        if not start:
            self._num_skipped = max(0, len(token_ids) - MAX_READ)
        new = token_ids[self._num_skipped + start :]
        self.token_ids += new
        for number, chains in enumerate(self._chains):
            self.keys[number] = chains.link(self.keys[number], new, start, self._older[number])

    def longest_match(self) -> TextMatch | None:
        """Return the longest match among the candidates of the longest n-gram that has one."""
        for number, chains in enumerate(self._chains):
            match = longest_match(self.token_ids, self._candidates(number), chains.length)
            if match is not None:
                return match
        return None

    def _candidates(self, number: int) -> Iterator[tuple[Sequence[int], int]]:
        """Yield the places of one chain, the newest first."""
        older = self._older[number]
        at = older[-1] if older else NO_ADDRESS
        while at != NO_ADDRESS:
            yield self.token_ids, at
            at = older[at]


def continuation(match: TextMatch, limit: int, *, repeats: bool) -> list[int]:
    """Return up to `limit` tokens after a match, but no more than matched: short matches often mislead.

    `repeats`: the match is in the sequence itself, so what it lacks at its end is its own continuation.
    """
    limit = min(limit, match.length)
    first = match.at + 1
    found = list(match.text[first : first + limit])
    if repeats and len(found) < limit:
        found *= -(-limit // len(found))
    return found[:limit]
