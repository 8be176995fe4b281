"""Lookup in the sequence's own text, and in the answers that other sequences of its cache salt have got."""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from octavo.drafting.chains import (
    NGRAM_LENGTHS,
    NO_ADDRESS,
    NgramChains,
    SequenceText,
    TextMatch,
    continuation,
    longest_match,
)
from octavo.drafting.proposer import Proposer

MAX_KEPT = 2**18  # tokens of finished texts; about 300 bytes each
MAX_TEXT = 2**12  # tokens of one of them
MIN_CHARGE = 64  # tokens that a short text counts as: its own objects take as much memory
MAX_PENDING = 64  # texts that wait to be learnt: if more end together, the first ones are dropped
KEPT_PROMPT = 128  # tokens of a prompt that are kept with the answer: they match those of similar prompts


class FinishedText:
    """A finished text. The address of a token is `number * MAX_TEXT` plus its position."""

    __slots__ = ("number", "older", "token_ids")

    def __init__(self, number: int, token_ids: Sequence[int]) -> None:
        self.number = number
        self.token_ids = array("q", token_ids)
        self.older = [array("q") for _ in NGRAM_LENGTHS]

    @property
    def charge(self) -> int:
        """What it counts for the bound on all texts."""
        return max(MIN_CHARGE, len(self.token_ids))

    @property
    def address(self) -> int:
        return self.number * MAX_TEXT


class FinishedTexts:
    """The finished texts of one cache salt, and chains of their n-grams over all of them.

    Texts are removed in the order of their numbers, so a chain that reaches a removed text ends there.
    """

    def __init__(self) -> None:
        self._texts: dict[int, FinishedText] = {}
        self._chains = [NgramChains(length) for length in NGRAM_LENGTHS]

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, text: FinishedText) -> None:
        self._texts[text.number] = text
        for chains, older in zip(self._chains, text.older, strict=True):
            chains.link(0, text.token_ids, text.address, older)

    def remove(self, text: FinishedText) -> None:
        del self._texts[text.number]
        for chains in self._chains:
            chains.unlink(text.token_ids, text.address)

    def longest_match(self, sequence: SequenceText) -> TextMatch | None:
        """Return the longest match among the candidates of the longest n-gram that has one."""
        for number, chains in enumerate(self._chains):
            candidates = self._candidates(number, chains.newest(sequence.keys[number]))
            match = longest_match(sequence.token_ids, candidates, chains.length)
            if match is not None:
                return match
        return None

    def _candidates(self, number: int, address: int) -> Iterator[tuple[Sequence[int], int]]:
        """Yield the places of one chain from an address on, the newest first."""
        while address != NO_ADDRESS and (text := self._texts.get(address // MAX_TEXT)) is not None:
            at = address % MAX_TEXT
            yield text.token_ids, at
            address = text.older[number][at]


class SuffixProposer:
    """Continues the sequence as after the longest match; at equal length, that in its own text."""

    def __init__(self, salt: str, speculation: "SuffixSpeculation") -> None:
        self.salt = salt
        self._speculation = speculation
        self._text = SequenceText()

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        if limit < 1:
            return ()
        self._text.extend(token_ids)
        own, finished = self._text.longest_match(), self._speculation.longest_match(self.salt, self._text)
        if finished is not None and (own is None or finished.length > own.length):
            return continuation(finished, limit, repeats=False)
        return () if own is None else continuation(own, limit, repeats=True)


class SuffixSpeculation:
    """Keeps the newest finished texts, of all salts together at most `max_kept` tokens.

    Salts share nothing but this bound: a text is compared only with sequences of its own salt.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._finished: dict[str, FinishedTexts] = {}
        self._order: deque[tuple[str, FinishedText]] = deque()  # the oldest first
        self._pending: deque[tuple[str, Sequence[int]]] = deque(maxlen=MAX_PENDING)
        self._next_number = 0
        self.num_kept = 0  # tokens, and more for short texts
        self.num_evicted = 0  # texts

    def open(self, salt: str) -> SuffixProposer:
        return SuffixProposer(salt, self)

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        assert isinstance(proposer, SuffixProposer)
        start = max(0, num_prompt - KEPT_PROMPT)
        kept = token_ids[start : start + min(MAX_TEXT, self._max_kept)]
        if num_prompt >= len(token_ids) or not kept:
            return
        self._pending.append((proposer.salt, kept))

    def learn(self) -> None:
        """Learn one text: many may end in the same step."""
        if not self._pending:
            return
        salt, kept = self._pending.popleft()
        text = FinishedText(self._next_number, kept)
        self._next_number += 1
        self._finished.setdefault(salt, FinishedTexts()).add(text)
        self._order.append((salt, text))
        self.num_kept += text.charge
        while self.num_kept > self._max_kept:
            self._evict_oldest()

    def longest_match(self, salt: str, sequence: SequenceText) -> TextMatch | None:
        finished = self._finished.get(salt)
        return None if finished is None else finished.longest_match(sequence)

    def _evict_oldest(self) -> None:
        salt, text = self._order.popleft()
        finished = self._finished[salt]
        finished.remove(text)
        if not finished:
            del self._finished[salt]
        self.num_kept -= text.charge
        self.num_evicted += 1
