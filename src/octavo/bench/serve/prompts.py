"""Prompts with an exact number of tokens that no cache contains.

They are drawn from a few hundred common tokens. Two prompts of different seeds share a prefix of k tokens
with a probability of about (1 / number of tokens) ** k, so that a prefix cache has no hits.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.serve.arrivals import Closed
from octavo.bench.serve.lengths import shuffled_lengths
from octavo.bench.serve.words import WORDS
from octavo.bench.serve.workload import Workload

Tokenise = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class PromptVocabulary:
    """Token ids and words for prompts. As far as is known, each word is one token."""

    token_ids: tuple[int, ...]
    words: tuple[str, ...] = WORDS

    @classmethod
    def of_text(cls, tokenise: Tokenise) -> "PromptVocabulary":
        """Use the tokens of a text with all words, which are ordinary tokens of any model."""
        return cls(tuple(sorted(set(tokenise(as_text(WORDS))))))

    @classmethod
    def of_words(cls, tokenise: Tokenise) -> "PromptVocabulary":
        """Use the words that are one token each, so that texts also have an exact number of tokens."""
        known = cls.of_text(tokenise)
        # Repeating the word also checks that it is one token in the middle of a text.
        single = tuple(word for word in WORDS if len(tokenise(as_text((word, word)))) == 2)
        return cls(known.token_ids, single or WORDS)


def as_text(words: Sequence[str]) -> str:
    """Join words, each with a leading space: within a text, tokens of words include it."""
    return "".join(f" {word}" for word in words)


@dataclass(frozen=True)
class PlannedRequest:
    """`choices` are indices into the vocabulary, modulo its size, for token ids and for words."""

    number: int
    at: float | None  # seconds after the start; None in a closed loop
    choices: tuple[int, ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return len(self.choices)

    def token_ids(self, vocabulary: PromptVocabulary) -> list[int]:
        ids = vocabulary.token_ids
        return [ids[choice % len(ids)] for choice in self.choices]

    def text(self, vocabulary: PromptVocabulary) -> str:
        words = vocabulary.words
        return as_text([words[choice % len(words)] for choice in self.choices])


def plan_requests(workload: Workload, seed: int) -> list[PlannedRequest]:
    """Return the requests of a workload: the same arguments give the same requests at the same times."""
    count = workload.num_requests
    prompts = shuffled_lengths(workload.prompt, count, random.Random(f"prompt lengths {seed}"))
    outputs = shuffled_lengths(workload.output, count, random.Random(f"output lengths {seed}"))
    arrivals = workload.arrivals
    times: Sequence[float | None] = (
        [None] * count
        if isinstance(arrivals, Closed)
        else arrivals.times(count, random.Random(f"arrivals {seed}"))
    )
    tokens = random.Random(f"tokens {seed}")
    shared = _choices(tokens, workload.shared)
    return [
        PlannedRequest(number, at, shared + _choices(tokens, prompt), output)
        for number, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True))
    ]


def _choices(tokens: random.Random, count: int) -> tuple[int, ...]:
    """Return 32-bit random numbers: modulo the size of a vocabulary, all tokens are about equally likely."""
    return tuple(tokens.getrandbits(32) for _ in range(count))
