"""Requests to compare: short and long, greedy and sampled, with shared prefixes, penalties and n > 1."""

from collections.abc import Sequence
from pathlib import Path

from octavo import GrammarKind, GrammarSpec, SamplingParams
from purity.ways import Request

TEXT = Path(__file__).parents[1] / "data/prose.txt"


# No grammar ends before the answer reaches max_tokens.
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
    """Return the parameters of a request; every fifth has a grammar."""
    grammar = GRAMMARS[number // 5 % len(GRAMMARS)] if number % 5 == 4 else None
    return SamplingParams(
        temperature=[0.0, 1.0, 0.7, 0.0, 1.2, 0.7][number % 6],
        top_p=[1.0, 0.9][number % 2],
        top_k=[0, 0, 0, 40][number % 4],
        min_p=[0.0, 0.02][number % 5 == 2],
        repetition_penalty=[1.0, 1.2][number % 4 == 1],
        presence_penalty=[0.0, 0.5][number % 7 == 3],
        frequency_penalty=[0.0, 0.4][number % 7 == 5],
        n=[1, 2][number % 8 == 4],
        seed=number,
        max_tokens=max_tokens,
        ignore_eos=grammar is None,
        grammar=grammar,
        logprobs=None if number % 10 == 9 else 2,  # without logprobs, forced tokens are emitted at once
    )


def tiny_requests() -> list[Request]:
    """Return 32 requests for a byte vocabulary, with answer lengths such that every batch size occurs."""
    lengths = [600, *(1 + 17 * (number % 9) for number in range(1, 32))]
    return [
        Request(
            [(7 * j + (0 if j < 64 and number % 3 else number)) % 250 for j in range(length)],
            params(number, 32 - number),
        )
        for number, length in enumerate(lengths)
    ]


# Prompt lengths, and the offsets in the text where they start.
LONG = ((560, 0), (100, 0), (150, 700), (70, 700), (40, 0))
SHORT = tuple((3 + 5 * number % 29, 1000 + 50 * (number // 2)) for number in range(27))


def real_requests(token_ids: Sequence[int], *, max_tokens: int = 5) -> list[Request]:
    """Return 32 requests from a real text, some of several blocks; long ones and pairs share prefixes."""
    pieces = [*LONG[:1], *SHORT[:9], *LONG[1:3], *SHORT[9:18], *LONG[3:], *SHORT[18:]]
    return _pieces(token_ids, pieces, max_tokens)


def few_requests(token_ids: Sequence[int]) -> list[Request]:
    """Return 6 requests, for slow configurations; the longest is long enough to share one block."""
    return _pieces(token_ids, [(40, 0), (9, 0), (34, 0), (5, 40), (3, 80), (2, 80)], 3)


def two_requests(token_ids: Sequence[int]) -> list[Request]:
    """Return 2 requests, for plain C++, which needs half a second per token with half a billion weights."""
    return _pieces(token_ids, [(3, 0), (2, 40)], 2)


def _pieces(token_ids: Sequence[int], pieces: Sequence[tuple[int, int]], max_tokens: int) -> list[Request]:
    return [
        Request(list(token_ids[start : start + length]), params(number, max(2, max_tokens - number % 3)))
        for number, (length, start) in enumerate(pieces)
    ]
