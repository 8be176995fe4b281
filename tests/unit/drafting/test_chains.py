import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from octavo.drafting.chains import BULK_TOKENS, MAX_READ, NGRAM_LENGTHS, NgramChains, SequenceText
from octavo.drafting.ngram import NgramProposer
from unit.drafting.naive import longest_match, places_before_the_end, texts


def text_of(token_ids: list[int]) -> SequenceText:
    text = SequenceText()
    text.extend(token_ids)
    return text


@given(texts())
def test_the_match_is_the_longest_of_the_newest_candidates(token_ids: list[int]) -> None:
    assert text_of(token_ids).longest_match() == longest_match(token_ids, places_before_the_end(token_ids))


@given(st.integers(0, 2**32), st.sets(st.integers(0, 3 * BULK_TOKENS), max_size=20), st.sampled_from([2, 20]))
def test_a_text_that_grows_is_the_same_as_a_whole_one(seed: int, cuts: set[int], num_words: int) -> None:
    words = random.Random(seed)
    token_ids = [words.randrange(num_words) * 1000 for _ in range(3 * BULK_TOKENS)]
    growing = SequenceText()
    for cut in sorted(cuts):
        growing.extend(token_ids[:cut])
        assert growing.longest_match() == text_of(token_ids[:cut]).longest_match()
    growing.extend(token_ids)
    single = SequenceText()
    for end in range(len(token_ids)):
        single.extend(token_ids[: end + 1])
    whole = text_of(token_ids)
    assert vars_of(growing) == vars_of(single) == vars_of(whole)


def test_only_the_end_of_a_long_prompt_is_read() -> None:
    once = list(range(10))
    token_ids = [*once, *range(100, 100 + MAX_READ), *once[:5]]
    assert text_of(token_ids).longest_match() is None
    text = text_of(token_ids[10:])
    text.extend([*token_ids[10:], 100, 101, 102])
    long = text_of(token_ids)
    long.extend([*token_ids, 105, 106, 107])
    assert [match.length if (match := one.longest_match()) else 0 for one in (text, long)] == [0, 3]


def vars_of(text: SequenceText) -> tuple[object, ...]:
    newest = [[chains.newest(key) for key in text.keys] for chains in text._chains]
    return text.token_ids, text.keys, text._older, newest, [len(chains) for chains in text._chains]


@given(st.lists(texts(), max_size=6), st.sampled_from(NGRAM_LENGTHS))
def test_texts_that_are_unlinked_leave_nothing(all_texts: list[list[int]], length: int) -> None:
    chains, reference = NgramChains(length), NgramChains(length)
    starts = [1000 * number for number in range(len(all_texts))]
    for start, text in zip(starts, all_texts, strict=True):
        chains.link(0, text, start, array("q"))
    for start, text in zip(starts[:-1], all_texts[:-1], strict=True):
        chains.unlink(text, start)
    for text in all_texts[-1:]:
        reference.link(0, text, starts[-1], array("q"))
    assert chains._newest == reference._newest


@given(st.lists(st.integers(0, 5), min_size=1, max_size=7), st.integers(0, 20), st.integers(1, 24))
def test_a_copy_continues_over_the_end_of_the_text(period: list[int], offset: int, limit: int) -> None:
    repeated = period * 120
    end = 60 + offset
    assert NgramProposer().propose(repeated[:end], limit) == repeated[end : end + limit]


def test_nothing_is_drafted_after_tokens_that_do_not_repeat() -> None:
    assert NgramProposer().propose(list(range(50)), 8) == ()
    assert NgramProposer().propose([1, 2, 3, 4, 5, 6, 1, 2], 8) == ()
    assert NgramProposer().propose([1, 2, 3, 4, 5, 6, 1, 2, 3], 8) == [4, 5, 6]
