"""Drafts from the answers that a run must give: right, wrong, right at first, and more than asked for."""

import random
from collections.abc import Sequence

from octavo.drafting import Proposer

MANY = 70  # drafts: more than any limit
NUM_TOKENS = 250  # wrong tokens are below; every vocabulary has more


class KnownAnswers:
    """A method of drafting. Every draft is a function of the seed, the texts and the tokens so far."""

    def __init__(self, texts: Sequence[Sequence[int]], seed: int = 0) -> None:
        """`texts`: the prompt and the answer of each choice."""
        self._texts = [list(text) for text in texts]
        self._seed = seed

    def open(self, salt: str) -> Proposer:
        return KnowingProposer(self._texts, self._seed)

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        pass

    def learn(self) -> None:
        pass


class KnowingProposer:
    """Takes the first text that begins with the tokens so far. Of two choices, it may be the other's."""

    def __init__(self, texts: list[list[int]], seed: int) -> None:
        self._texts = texts
        self._seed = seed

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        end = len(token_ids)
        self._texts = [text for text in self._texts if text[:end] == token_ids]
        rest = self._texts[0][end:] if self._texts else []
        chance = random.Random(f"{self._seed} {end} {rest}")
        wrong = [(token + chance.randrange(1, NUM_TOKENS)) % NUM_TOKENS for token in rest]
        match chance.randrange(6):
            case 0:
                return ()
            case 1:
                return wrong[:limit]
            case 2:
                return rest[:limit]
            case 3:
                return (rest + [chance.randrange(NUM_TOKENS) for _ in range(MANY)])[:MANY]
            case _:
                num_right = chance.randrange(1, limit + 1)
                return (rest[:num_right] + wrong[num_right:])[:limit]
