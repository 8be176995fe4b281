"""What the scheduler expects of a method of drafting."""

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Proposes the next tokens of one sequence."""

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that may follow `token_ids`; none without a good guess.

        `token_ids` are all tokens of the sequence so far. They begin with those of the last call.
        """
        ...


class Speculation(Protocol):
    """A method of drafting, and what it has learnt. Owned by the scheduler."""

    def open(self, salt: str) -> Proposer:
        """Return a proposer for a new sequence. It uses nothing of sequences with another cache salt."""
        ...

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        """Note a sequence that has ended well: `token_ids` are its prompt and its answer."""
        ...

    def learn(self) -> None:
        """Learn from sequences that have ended, for a few milliseconds at most. Called once per step."""
        ...
