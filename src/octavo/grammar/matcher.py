"""The state of an answer with respect to its grammar."""

import ctypes
from collections.abc import Sequence

from octavo.errors import GrammarTooComplex
from octavo.grammar.compiler import CompiledGrammar

TOO_COMPLEX = (
    "The grammar of this request became too complex at this point of the answer. "
    "Simplify it: use fewer alternatives with a common beginning, and smaller repeat counts."
)


class GrammarMatcher:
    """Its state depends only on the grammar and the tokens appended so far.

    For each token, llguidance gets the same queries in the same order: which tokens are forced; if none is,
    which are allowed. Tokens that were drawn elsewhere (before a preemption or a crash) are replayed with the
    same queries: these fill internal tables, and only equal tables reach their limits at the same token.
    """

    def __init__(self, compiled: CompiledGrammar, drawn: Sequence[int] = ()) -> None:
        self._matcher = compiled.new_matcher()
        # The forced tokens of the last query, and how many of them were appended since; None: query again.
        self._queue: tuple[list[int], int] | None = None
        self._history: list[tuple[list[int], int]] = []  # previous values of `_queue`, one per token
        for token_id in drawn:
            self.follow(token_id)

    @property
    def forced(self) -> int | None:
        """Return the next token if there is only one option: the tokenizer's encoding of the forced bytes."""
        if self._queue is None:
            self._queue = self._matcher.compute_ff_tokens(), 0
        tokens, num_appended = self._queue
        return tokens[num_appended] if num_appended < len(tokens) else None

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask of the next token to `address`: token i is bit i % 32 of int32 word i / 32.

        Releases the GIL during the computation.
        """
        forced = self.forced
        if forced is None:
            self._matcher.unsafe_compute_mask_ptr(address, num_bytes)
            self._check()
        else:
            ctypes.memset(address, 0, num_bytes)
            ctypes.c_uint32.from_address(address + forced // 32 * 4).value = 1 << forced % 32

    def can_begin(self) -> bool:
        """Return whether the grammar allows a first token."""
        self._matcher.compute_bitmask()
        return not self._matcher.is_error()

    def follow(self, token_id: int) -> None:
        """Append a token that was drawn elsewhere."""
        if self.forced is None:
            self._matcher.compute_bitmask()
        self.append(token_id)

    def append(self, token_id: int) -> None:
        is_forced = self.forced == token_id
        assert self._queue is not None
        self._history.append(self._queue)
        tokens, num_appended = self._queue
        has_more = is_forced and num_appended + 1 < len(tokens)
        self._queue = (tokens, num_appended + 1) if has_more else None
        self._matcher.consume_token(token_id)
        self._check()

    def append_forced(self, limit: int) -> list[int]:
        """Append up to `limit` forced tokens and return them."""
        tokens: list[int] = []
        while len(tokens) < limit and (forced := self.forced) is not None:
            self.append(forced)
            tokens.append(forced)
        return tokens

    def roll_back(self, num_tokens: int) -> None:
        """Remove the last tokens: a draft that was not accepted."""
        if num_tokens:
            self._queue = self._history[-num_tokens]
            del self._history[-num_tokens:]
        self._matcher.rollback(num_tokens)
        self._check()

    @property
    def is_accepting(self) -> bool:
        """Return whether the answer may end here."""
        return self._matcher.is_accepting()

    @property
    def has_ended(self) -> bool:
        """Return whether the last token ended the answer. More ends could not be rolled back."""
        return self._matcher.stop_reason() == "EndOfSentence"

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarTooComplex(TOO_COMPLEX)
