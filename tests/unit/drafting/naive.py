"""What the chains must find, by comparing with every place of every text; and texts to try."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from hypothesis import strategies as st

from octavo.drafting.chains import MAX_CANDIDATES, MAX_MATCH, NGRAM_LENGTHS, TextMatch

PHRASES = st.lists(st.lists(st.integers(1, 3), max_size=12), min_size=1, max_size=4)
Places = Iterable[tuple[Sequence[int], int]]


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Phrases in any order, so that there are short and long matches, and many candidates."""
    phrases = draw(PHRASES)
    order = draw(st.lists(st.integers(0, len(phrases) - 1), max_size=30))
    return [token for number in order for token in phrases[number]]


def common_suffix(text: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    while length < min(MAX_MATCH, len(text), len(other)) and text[-1 - length] == other[-1 - length]:
        length += 1
    return length


def places_before_the_end(text: Sequence[int]) -> Places:
    return [(text, at) for at in reversed(range(len(text) - 1))]


def places_in(texts: Iterable[Sequence[int]]) -> Places:
    return [(text, at) for text in texts for at in reversed(range(len(text)))]


def longest_match(text: Sequence[int], places: Places) -> TextMatch | None:
    """Return the longest match, the first of equal ones; `places` are those to look at, newest first."""

    def matches(min_length: int) -> Iterator[TextMatch]:
        for other, at in places:
            length = common_suffix(text, other[: at + 1])
            if length >= min_length:
                yield TextMatch(length, other, at)

    for min_length in NGRAM_LENGTHS:
        candidates = islice(matches(min_length), MAX_CANDIDATES)
        found = [match for match in candidates if match.at + 1 < len(match.text)]
        if found:
            return max(found, key=lambda match: match.length)
    return None
