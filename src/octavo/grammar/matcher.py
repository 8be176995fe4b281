"""Where an answer stands in its grammar."""

import ctypes
from collections.abc import Sequence

from octavo.errors import GrammarError
from octavo.grammar.compiler import CompiledGrammar

TOO_COMPLEX = (
    "The grammar of this request became too complex to follow at this point of the answer. "
    "Make it simpler: fewer alternatives that begin alike, smaller repeat counts."
)


class GrammarMatcher:
    """A function of the grammar and the tokens appended so far, and of nothing else.

    At each token llguidance is asked the same questions in the same order by everybody: is a token forced; if
    not, which are allowed. Tokens drawn elsewhere (before a preemption, a crash) are gone through in this way
    too. For answers fill tables inside, and only equal tables meet their bounds at the same token.
    """

    def __init__(self, compiled: CompiledGrammar, drawn: Sequence[int] = ()) -> None:
        self._matcher = compiled.new_matcher()
        self._asked = False
        self._forced: int | None = None
        for token_id in drawn:
            if self.forced is None:
                self._matcher.compute_bitmask()
            self.append(token_id)

    @property
    def forced(self) -> int | None:
        """The next token, if there is no choice: the tokenizer's first one for the bytes that must come."""
        if not self._asked:
            forced = self._matcher.compute_ff_tokens()
            self._asked, self._forced = True, forced[0] if forced else None
        return self._forced

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

    def append(self, token_id: int) -> None:
        self._asked = False
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
        self._asked = False
        self._matcher.rollback(num_tokens)
        self._check()

    @property
    def is_accepting(self) -> bool:
        """The answer may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(TOO_COMPLEX)
