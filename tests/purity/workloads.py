"""Requests to compare: short and long, greedy and sampled, alike at the beginning, with penalties, n > 1."""

from collections.abc import Sequence
from pathlib import Path

from octavo import GrammarKind, GrammarSpec, SamplingParams
from purity.ways import Request

TEXT = Path(__file__).parents[1] / "data/prose.txt"


# None of them ends before an answer of ours does.
GRAMMARS = (
    GrammarSpec(GrammarKind.REGEX, "([a-z]{2,6}[ ,.;]){40}"),
    GrammarSpec(
        GrammarKind.JSON_SCHEMA,
        '{"type": "array", "minItems": 12, "items": {"type": "object", "required": ["name", "size"],'
        '"properties": {"name": {"type": "string", "maxLength": 9}, "size": {"type": "integer"}}}}',
    ),
    GrammarSpec(GrammarKind.LARK, 'start: part{40}\npart: "(" part ")" | WORD " "\nWORD: /[a-z]+|[0-9]/'),
)


def params(number: int, max_tokens: int) -> SamplingParams:
    """Every fifth has a grammar."""
    grammar = GRAMMARS[number // 5 % len(GRAMMARS)] if number % 5 == 4 else None
    return SamplingParams(
        temperature=[0.0, 1.0, 0.7][number % 3],
        top_p=[1.0, 0.9][number % 2],
        top_k=[0, 0, 0, 40][number % 4],
        min_p=[0.0, 0.02][number % 5 == 2],
        repetition_penalty=[1.0, 1.2][number % 4 == 1],
        presence_penalty=[0.0, 0.5][number % 7 == 3],
        n=[1, 2][number % 8 == 4],
        seed=number,
        max_tokens=max_tokens,
        ignore_eos=grammar is None,
        grammar=grammar,
        logprobs=None if number % 10 == 9 else 2,  # without them, tokens that a grammar forces come at once
    )


def tiny_requests() -> list[Request]:
    """32 for a vocabulary of bytes. The lengths of the answers are such that batches of every size occur."""
    lengths = [600, *(1 + 17 * (number % 9) for number in range(1, 32))]
    return [
        Request(
            [(7 * j + (0 if j < 64 and number % 3 else number)) % 250 for j in range(length)],
            params(number, 32 - number),
        )
        for number, length in enumerate(lengths)
    ]


# Lengths of prompts, and how many tokens of the text they begin after.
LONG = ((560, 0), (100, 0), (150, 700), (70, 700), (40, 0))
SHORT = tuple((3 + 5 * number % 29, 1000 + 50 * (number // 2)) for number in range(27))


def real_requests(token_ids: Sequence[int], *, max_tokens: int = 5) -> list[Request]:
    """32 of a real text, some of several pages; the long ones and pairs of short ones begin alike."""
    pieces = [*LONG[:1], *SHORT[:9], *LONG[1:3], *SHORT[9:18], *LONG[3:], *SHORT[18:]]
    return _pieces(token_ids, pieces, max_tokens)


def few_requests(token_ids: Sequence[int]) -> list[Request]:
    """Where there is no time for more: the longest just has a page to share."""
    return _pieces(token_ids, [(40, 0), (9, 0), (34, 0), (5, 40), (3, 80), (2, 80)], 3)


def two_requests(token_ids: Sequence[int]) -> list[Request]:
    """For arithmetic without vectors, which takes half a second for a token of half a billion weights."""
    return _pieces(token_ids, [(3, 0), (2, 40)], 2)


def _pieces(token_ids: Sequence[int], pieces: Sequence[tuple[int, int]], max_tokens: int) -> list[Request]:
    return [
        Request(list(token_ids[start : start + length]), params(number, max(2, max_tokens - number % 3)))
        for number, (length, start) in enumerate(pieces)
    ]
