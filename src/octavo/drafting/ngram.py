"""Prompt lookup: what followed the last time that the sequence had its last few tokens."""

from collections.abc import Sequence

from octavo.drafting.chains import SequenceText, continuation
from octavo.drafting.proposer import Proposer


class NgramProposer:
    """Continues the sequence as after the longest match in its own text."""

    def __init__(self) -> None:
        self._text = SequenceText()

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        if limit < 1:
            return ()
        self._text.extend(token_ids)
        match = self._text.longest_match()
        return () if match is None else continuation(match, limit, repeats=True)


class NgramSpeculation:
    """Learns nothing from other sequences."""

    def open(self, salt: str) -> NgramProposer:
        return NgramProposer()

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        pass

    def learn(self) -> None:
        pass
