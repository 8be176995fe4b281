"""Where an answer stands in its grammar."""

import ctypes
from collections.abc import Sequence

from octavo.errors import GrammarTooComplex
from octavo.grammar.compiler import CompiledGrammar

TOO_COMPLEX = (
    "The grammar of this request became too complex to follow at this point of the answer. "
    "Make it simpler: fewer alternatives that begin alike, smaller repeat counts."
)


class GrammarMatcher:
    """A function of the grammar and the tokens appended so far, and of nothing else.

    At each token llguidance is asked the same questions in the same order, whoever asks: which tokens are
    forced; if none is, which are allowed. Tokens drawn elsewhere (before a preemption, a crash) are gone
    through in the same way: that fills tables inside, and only equal ones meet their bounds at one token.
    """

    def __init__(self, compiled: CompiledGrammar, drawn: Sequence[int] = ()) -> None:
        self._matcher = compiled.new_matcher()
        # What was forced when that was last asked, and how much of it has come since; None: to be asked.
        self._queue: tuple[list[int], int] | None = None
        self._history: list[tuple[list[int], int]] = []  # of `_queue`, one per token
        for token_id in drawn:
            self.follow(token_id)

    @property
    def forced(self) -> int | None:
        """The next token, if there is no choice: of the bytes that must come, as the tokenizer has them."""
        if self._queue is None:
            self._queue = self._matcher.compute_ff_tokens(), 0
        tokens, come = self._queue
        return tokens[come] if come < len(tokens) else None

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask of the next token there: bit i % 32 of the int32 word i / 32. Without the GIL."""
        forced = self.forced
        if forced is None:
            self._matcher.unsafe_compute_mask_ptr(address, num_bytes)
            self._check()
        else:
            ctypes.memset(address, 0, num_bytes)
            ctypes.c_uint32.from_address(address + forced // 32 * 4).value = 1 << forced % 32

    def can_begin(self) -> bool:
        """Whether there is a first token."""
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
        tokens, come = self._queue
        self._queue = (tokens, come + 1) if is_forced and come + 1 < len(tokens) else None
        self._matcher.consume_token(token_id)
        self._check()

    def append_forced(self, most: int) -> list[int]:
        """Append what is forced from here on, and tell what that was."""
        tokens: list[int] = []
        while len(tokens) < most and (forced := self.forced) is not None:
            self.append(forced)
            tokens.append(forced)
        return tokens

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last tokens: a draft that was not accepted."""
        if num_tokens:
            self._queue = self._history[-num_tokens]
            del self._history[-num_tokens:]
        self._matcher.rollback(num_tokens)
        self._check()

    @property
    def is_accepting(self) -> bool:
        """The answer may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarTooComplex(TOO_COMPLEX)
