from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from octavo.drafting.proposer import Speculation
from octavo.drafting.suffix import (
    KEPT_PROMPT,
    MAX_PENDING,
    MAX_TEXT,
    MIN_CHARGE,
    SuffixProposer,
    SuffixSpeculation,
)
from unit.drafting.naive import longest_match, places_before_the_end, places_in, texts

LIMIT = 8
BOUND = 3 * MIN_CHARGE


@dataclass(frozen=True)
class Answered:
    """A sequence, and its drafts when it has all tokens and after its first half."""

    salt: str
    token_ids: list[int]
    num_prompt: int

    def run(self, speculation: Speculation) -> list[list[int]]:
        proposer = speculation.open(self.salt)
        ends = (len(self.token_ids) // 2, len(self.token_ids))
        drafts = [list(proposer.propose(self.token_ids[:end], LIMIT)) for end in ends]
        speculation.close(proposer, self.token_ids, self.num_prompt)
        speculation.learn()
        return drafts


@st.composite
def answered(draw: st.DrawFn) -> Answered:
    token_ids = draw(texts())
    return Answered(draw(st.sampled_from("ab")), token_ids, draw(st.integers(0, 10)))


SEQUENCES = st.lists(answered(), max_size=12)


@given(SEQUENCES, texts())
def test_drafts_follow_the_longest_match(earlier: list[Answered], token_ids: list[int]) -> None:
    speculation = SuffixSpeculation()
    for one in earlier:
        one.run(speculation)
    finished = [
        one.token_ids[max(0, one.num_prompt - KEPT_PROMPT) :]
        for one in reversed(earlier)
        if one.salt == "a" and one.num_prompt < len(one.token_ids)
    ]
    own = longest_match(token_ids, places_before_the_end(token_ids))
    other = longest_match(token_ids, places_in(finished))
    expected: list[int] = []
    if other is not None and (own is None or other.length > own.length):
        expected = list(other.text[other.at + 1 :])[: min(LIMIT, other.length)]
    elif own is not None:
        copied = list(token_ids)
        for _ in range(min(LIMIT, own.length)):
            copied.append(copied[own.at + 1 + len(copied) - len(token_ids)])
        expected = copied[len(token_ids) :]
    assert list(speculation.open("a").propose(token_ids, LIMIT)) == expected


@given(SEQUENCES)
def test_drafts_do_not_depend_on_sequences_with_another_salt(sequences: list[Answered]) -> None:
    both, alone = SuffixSpeculation(), SuffixSpeculation()
    for one in sequences:
        drafts = one.run(both)
        if one.salt == "a":
            assert drafts == one.run(alone)


def num_ngrams(speculation: SuffixSpeculation) -> dict[str, list[int]]:
    return {
        salt: [len(chains) for chains in finished._chains] for salt, finished in speculation._finished.items()
    }


@given(SEQUENCES, texts())
def test_evicted_texts_leave_nothing_and_live_proposers_go_on(
    sequences: list[Answered], token_ids: list[int]
) -> None:
    bounded, rest = SuffixSpeculation(max_kept=BOUND), SuffixSpeculation()
    live = {salt: bounded.open(salt) for salt in "ab"}
    num_texts = 0
    for one in sequences:
        live[one.salt].propose(token_ids[: len(token_ids) // 2], LIMIT)
        one.run(bounded)
        num_texts += one.num_prompt < len(one.token_ids)
        assert bounded.num_kept <= BOUND
    newest = [one for one in sequences if one.num_prompt < len(one.token_ids)][bounded.num_evicted :]
    for one in newest:
        kept = Answered(one.salt, one.token_ids[:BOUND], one.num_prompt)
        kept.run(rest)
    assert rest.num_kept == bounded.num_kept
    assert len(newest) == num_texts - bounded.num_evicted
    assert num_ngrams(bounded) == num_ngrams(rest)
    for salt, proposer in live.items():
        assert proposer.propose(token_ids, LIMIT) == rest.open(salt).propose(token_ids, LIMIT)


def test_a_text_is_kept_from_shortly_before_its_answer() -> None:
    speculation = SuffixSpeculation()
    num_prompt = 3 * MAX_TEXT
    token_ids = list(range(6 * MAX_TEXT))
    speculation.close(speculation.open(""), token_ids, num_prompt)
    speculation.learn()
    assert speculation.num_kept == MAX_TEXT

    def is_kept(at: int) -> bool:
        proposer: SuffixProposer = speculation.open("")
        return list(proposer.propose(token_ids[at - 5 : at], 2)) == token_ids[at : at + 2]

    assert is_kept(num_prompt)
    assert is_kept(num_prompt + MAX_TEXT // 2)
    assert not is_kept(num_prompt - KEPT_PROMPT)
    assert not is_kept(num_prompt + MAX_TEXT)


def test_texts_that_end_together_are_learnt_one_at_a_time() -> None:
    speculation = SuffixSpeculation()
    for number in range(MAX_PENDING + 2):
        speculation.close(speculation.open(""), range(1000 * number, 1000 * number + MIN_CHARGE), 1)
    learnt = []
    for _ in range(MAX_PENDING + 2):
        speculation.learn()
        learnt.append(speculation.num_kept // MIN_CHARGE)
    assert learnt == [*range(1, MAX_PENDING + 1), MAX_PENDING, MAX_PENDING]
    drafts = [speculation.open("").propose([1000 * number + at for at in (3, 4, 5)], 1) for number in (1, 2)]
    assert [list(draft) for draft in drafts] == [[], [2006]]  # the first two were dropped
