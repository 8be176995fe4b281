"""Where an answer stands in its grammar."""

from collections.abc import Sequence

from octavo.errors import GrammarError
from octavo.grammar.compiler import CompiledGrammar

TOO_COMPLEX = (
    "The grammar of this request became too complex to follow at this point of the answer. "
    "Make it simpler: fewer alternatives that begin alike, smaller repeat counts."
)


class GrammarMatcher:
    """A function of the grammar and the tokens appended so far, and of nothing else.

    Tokens that were drawn elsewhere (before a preemption, a crash) are gone through as they were then, with a
    mask for each: masks fill tables inside llguidance, and only equal tables meet their bounds at one token.
    """

    def __init__(self, compiled: CompiledGrammar, drawn: Sequence[int] = ()) -> None:
        self._matcher = compiled.new_matcher()
        for token_id in drawn:
            self._matcher.compute_bitmask()
            self.append(token_id)

    def fill(self, address: int, num_bytes: int) -> None:
        """Write the mask of the next token there: bit i % 32 of the int32 word i / 32. Without the GIL."""
        self._matcher.unsafe_compute_mask_ptr(address, num_bytes)
        self._check()

    def can_begin(self) -> bool:
        """Whether there is a first token."""
        self._matcher.compute_bitmask()
        return not self._matcher.is_error()

    def append(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._check()

    def roll_back(self, num_tokens: int) -> None:
        """Forget the last tokens: a draft that was not accepted."""
        self._matcher.rollback(num_tokens)
        self._check()

    @property
    def is_accepting(self) -> bool:
        """The answer may end here."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(TOO_COMPLEX)
