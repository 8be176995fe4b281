"""A token tally has the same counts whether it was incremented or restored."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.tally import TokenTally

tokens = st.lists(st.integers(0, 300), max_size=200)


def contents(tally: TokenTally) -> dict[int, float]:
    ids = tally.ids.tolist()
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, tally.counts.tolist(), strict=True))


@settings(deadline=None)
@given(prompt=tokens, before=tokens, after=tokens)
def test_restored_counts_equal_incremental_counts(
    prompt: list[int], before: list[int], after: list[int]
) -> None:
    grown = TokenTally(prompt, before)
    for token in after:
        grown.add(token)
    counts = Counter(before + after)
    expected = {token: counts[token] for token in {*prompt, *before, *after}}
    assert contents(grown) == expected
    assert contents(TokenTally(prompt, before + after)) == expected
