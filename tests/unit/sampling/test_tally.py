"""A token tally has the same counts whether it was incremented, restored or looked ahead."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling.tally import TokenTally

tokens = st.lists(st.integers(0, 300), max_size=200)


def contents(tally: TokenTally, ahead: Sequence[int] = ()) -> dict[int, float]:
    ids, counts = tally.ahead(ahead)
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


@settings(deadline=None)
@given(prompt=tokens, before=tokens, after=tokens)
def test_restored_counts_equal_incremental_counts(
    prompt: list[int], before: list[int], after: list[int]
) -> None:
    grown = TokenTally(prompt, before)
    ahead = contents(grown, after)
    assert contents(grown) == contents(TokenTally(prompt, before))  # looking ahead changes nothing
    for token in after:
        grown.add(token)
    counts = Counter(before + after)
    expected = {token: counts[token] for token in {*prompt, *before, *after}}
    assert contents(grown) == ahead == expected
    assert contents(TokenTally(prompt, before + after)) == expected
