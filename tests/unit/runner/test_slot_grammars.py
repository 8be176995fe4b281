"""Grammars of slots: a mask for whoever draws, and nothing of one owner for the next."""

from octavo.grammar.matcher import TOO_COMPLEX
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.plan import SequenceSlice, SlotOpening, StepPlan
from octavo.protocol import Failure, FailureCode, GrammarKind, GrammarSpec, SamplingParams
from octavo.runner.slot_grammars import MOST_FORCED, SlotGrammars

LETTERS = GrammarSpec(GrammarKind.REGEX, "[a-c]+")
DIGITS = GrammarSpec(GrammarKind.REGEX, "[1-3]{2}")
LONG = GrammarSpec(GrammarKind.REGEX, "[ab]c{100}")
BROKEN = GrammarSpec(GrammarKind.REGEX, "(a")
END = 256


def grammars() -> SlotGrammars:
    return SlotGrammars(byte_vocabulary, 257)


def opening(slot: int, grammar: GrammarSpec | None, drawn: bytes = b"") -> SlotOpening:
    return SlotOpening(slot, SamplingParams(grammar=grammar), 0, (END,), 2, (1, 2, *drawn))


def plan(*drawing: int, opened: tuple[SlotOpening, ...] = (), closed: tuple[int, ...] = ()) -> StepPlan:
    slices = tuple(SequenceSlice(slot, 0, (1,), 0, (), 1) for slot in drawing)
    return StepPlan(1, closed, opened, slices)


def allowed(slots: SlotGrammars, slot: int) -> set[int] | None:
    mask = slots.mask(slot)
    return None if mask is None else {i for i in range(257) if int(mask[i // 32]) >> i % 32 & 1}


def test_every_slot_has_its_own() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, 2, opened=(opening(0, LETTERS), opening(1, None), opening(2, DIGITS, b"1"))))
    assert allowed(slots, 0) == set(b"abc")
    assert allowed(slots, 1) is None
    assert allowed(slots, 2) == set(b"123")
    slots.append(0, ord("a"), jump=True)
    slots.append(2, ord("3"), jump=True)
    assert slots.append(1, 7, jump=True) is None
    slots.begin(plan(0, 2))
    assert allowed(slots, 0) == {*b"abc", END}
    assert allowed(slots, 2) == {END}


def test_a_slot_with_a_new_owner_knows_nothing_of_the_old_one() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, LETTERS), opening(1, DIGITS))))
    slots.begin(plan(0, 1, closed=(0, 1), opened=(opening(0, DIGITS), opening(1, None))))
    assert allowed(slots, 0) == set(b"123")
    assert allowed(slots, 1) is None
    slots.begin(plan(0, opened=(opening(0, None),)))  # opened again without having been closed
    assert allowed(slots, 0) is None


def test_a_grammar_that_fails_blames_its_slot_alone() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, BROKEN), opening(1, LETTERS))))
    slots.mask(0)
    refused = slots.failure(0)
    assert refused is not None
    assert refused.code is FailureCode.ENGINE_FAILED
    assert "unclosed group" in refused.message
    assert allowed(slots, 1) == set(b"abc")
    assert slots.failure(1) is None
    slots.begin(plan(2, opened=(opening(2, LETTERS, b"x"),)))  # a history that the grammar does not allow
    slots.mask(2)
    assert slots.failure(2) == Failure(FailureCode.GRAMMAR_TOO_COMPLEX, TOO_COMPLEX)


def test_forced_tokens_come_in_bounded_numbers() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, LONG), opening(1, LONG))))
    allowed(slots, 0), allowed(slots, 1)
    jumped, walked = slots.append(0, ord("a"), jump=True), slots.append(1, ord("a"), jump=False)
    assert jumped is not None
    assert walked is not None
    assert jumped.result() == [ord("c")] * MOST_FORCED
    assert walked.result() == []
    slots.begin(plan(0, 1))
    assert allowed(slots, 0) == allowed(slots, 1) == {ord("c")}


def test_the_vocabulary_is_made_once_and_when_it_is_wanted() -> None:
    made = []

    def make() -> Vocabulary:
        made.append(1)
        return byte_vocabulary()

    slots = SlotGrammars(make, 257)
    slots.begin(plan(0, opened=(opening(0, None),)))
    assert not made
    for spec in (LETTERS, DIGITS):
        slots.begin(plan(0, opened=(opening(0, spec),)))
        assert allowed(slots, 0)
    assert len(made) == 1


def test_a_vocabulary_that_was_prepared_is_not_made_again() -> None:
    made: list[int] = []

    def make() -> Vocabulary:
        made.append(1)
        return byte_vocabulary()

    slots = SlotGrammars(make, 257)
    slots.prepare()
    slots.prepare()
    slots.begin(plan(0, opened=(opening(0, LETTERS),)))
    assert allowed(slots, 0)
    assert len(made) == 1
