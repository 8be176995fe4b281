"""Drafts for a simulation: the expected answers are known, and proposed, or spoiled on purpose."""

import random
from collections.abc import Sequence

from octavo.drafting.proposer import Proposer
from octavo.protocol import GenerateRequest
from octavo.simulate.tracked_request import Violation

SURPLUS = 3  # a proposal may exceed its limit by up to this many tokens
STOP_ID = 0


class Guesses:
    """A method of drafting. It checks how it is called."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._rng = random.Random(seed)
        self._vocab = vocab
        self._skill = self._rng.choice((0.2, 0.6, 0.9, 1.0))  # fraction of proposals that are right
        # Prompt and answer of unfinished requests, by cache salt, then by seed and choice.
        self._expected: dict[str, dict[tuple[int, int], tuple[int, ...]]] = {}

    def expect(self, request: GenerateRequest, answer: tuple[int, ...]) -> None:
        self._expected.setdefault(request.cache_salt, {})[_handle(request)] = request.prompt_ids + answer

    def forget(self, request: GenerateRequest) -> None:
        del self._expected[request.cache_salt][_handle(request)]

    def open(self, salt: str) -> "Guesser":
        return Guesser(self, salt)

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        assert isinstance(proposer, Guesser)
        if proposer.is_closed or not 0 < num_prompt <= len(token_ids):
            raise Violation(f"closed twice, or with a prompt of {num_prompt} of {len(token_ids)} tokens")
        proposer.check_tokens(tuple(token_ids))
        proposer.is_closed = True

    def learn(self) -> None:
        pass

    def find(self, salt: str, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the prompt and answer of an unfinished request that begins with these tokens."""
        for expected in self._expected.get(salt, {}).values():
            if expected[: len(token_ids)] == token_ids:
                return expected
        raise Violation(f"no unfinished request with {salt} has the tokens {token_ids}")

    def guess(self, expected: tuple[int, ...], limit: int) -> list[int]:
        """Return the tokens that are expected next, or change them in one of several ways."""
        rng, vocab = self._rng, self._vocab
        length = limit + rng.randint(0, SURPLUS)
        tokens = list(expected[:length])
        tokens += rng.choices(range(vocab), k=length - len(tokens))  # beyond the end of the answer
        if rng.random() < self._skill:
            return tokens
        kind = rng.randrange(5)
        if kind == 0:
            return []
        if kind == 1:
            return tokens[: rng.randint(1, length)]
        if kind == 2:
            tokens[rng.randrange(length)] = STOP_ID
            return tokens
        first_wrong = 0 if kind == 3 else rng.randrange(length)
        return tokens[:first_wrong] + [(token + 1) % vocab for token in tokens[first_wrong:]]


class Guesser:
    """Proposes the next tokens of one sequence."""

    def __init__(self, guesses: Guesses, salt: str) -> None:
        self._guesses = guesses
        self._salt = salt
        self._seen: tuple[int, ...] = ()
        self._expected: tuple[int, ...] = ()
        self.is_closed = False

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        tokens = tuple(token_ids)
        self.check_tokens(tokens)
        if limit < 1 or self.is_closed:
            raise Violation(f"a proposal of {limit} tokens was requested, or after the end")
        if not tokens or self._expected[: len(tokens)] != tokens:
            self._expected = self._guesses.find(self._salt, tokens)
        return self._guesses.guess(self._expected[len(tokens) :], limit)

    def check_tokens(self, tokens: tuple[int, ...]) -> None:
        if tokens[: len(self._seen)] != self._seen:
            raise Violation(f"the tokens {tokens} of a sequence do not begin with {self._seen}")
        self._seen = tokens


def _handle(request: GenerateRequest) -> tuple[int, int]:
    assert request.params.seed is not None
    return request.params.seed, request.choice
