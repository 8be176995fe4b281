"""Prompts of an exact number of tokens, which no cache has seen before.

They are drawn from a few hundred common tokens. Two prompts of different seeds share a beginning of k tokens
with a chance of about (1/number of tokens) to the power of k: a prefix cache finds nothing.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bench.serve.arrivals import Closed
from octavo.bench.serve.lengths import drawn
from octavo.bench.serve.words import WORDS
from octavo.bench.serve.workload import Workload

Tokenise = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Vocabulary:
    """What prompts are made of. One of the words is one token as far as we could find out."""

    token_ids: tuple[int, ...]
    words: tuple[str, ...] = WORDS

    @classmethod
    def of_text(cls, tokenise: Tokenise) -> "Vocabulary":
        """The tokens of a text of all words: whatever the model, they are ordinary ones."""
        return cls(tuple(sorted(set(tokenise(as_text(WORDS))))))

    @classmethod
    def of_words(cls, tokenise: Tokenise) -> "Vocabulary":
        """The words that are one token each, so that texts too have an exact number of tokens."""
        known = cls.of_text(tokenise)
        # A second word shows whether the first one is one token in the middle of a text as well.
        single = tuple(word for word in WORDS if len(tokenise(as_text((word, word)))) == 2)
        return cls(known.token_ids, single or WORDS)


def as_text(words: Sequence[str]) -> str:
    """With a space in front: in the middle of a text, words are tokens with one."""
    return "".join(f" {word}" for word in words)


@dataclass(frozen=True)
class PlannedRequest:
    """`choices` point into the vocabulary, modulo its size: ids and words are made of the same numbers."""

    number: int
    at: float | None  # seconds after the start; None: when its turn comes
    choices: tuple[int, ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return len(self.choices)

    def token_ids(self, vocabulary: Vocabulary) -> list[int]:
        ids = vocabulary.token_ids
        return [ids[choice % len(ids)] for choice in self.choices]

    def text(self, vocabulary: Vocabulary) -> str:
        words = vocabulary.words
        return as_text([words[choice % len(words)] for choice in self.choices])


def plan_requests(workload: Workload, seed: int) -> list[PlannedRequest]:
    """A function of both arguments: the same requests at the same times."""
    count = workload.num_requests
    prompts = drawn(workload.prompt, count, random.Random(f"prompt lengths {seed}"))
    outputs = drawn(workload.output, count, random.Random(f"output lengths {seed}"))
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
    """Numbers that any vocabulary is small beside: taken modulo its size, all its tokens are as likely."""
    return tuple(tokens.getrandbits(32) for _ in range(count))
