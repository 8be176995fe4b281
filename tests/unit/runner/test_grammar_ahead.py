"""Look-aheads find the masks of a matcher that appends the drafts, and no answer depends on them."""

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from octavo.dialect.call_grammar import TextInput, calls_only, full_grammar
from octavo.dialect.reasoning import Reasons
from octavo.errors import GrammarError
from octavo.grammar.compiler import compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary, make_vocabulary
from octavo.plan import SequenceSlice, SlotOpening, StepPlan
from octavo.protocol import FailureCode, GrammarKind, GrammarSpec, SamplingParams
from octavo.runner.grammar_ahead import LookAhead
from octavo.runner.slot_grammars import ANY, SlotGrammars

END = 256
NUM_WORDS = 9
PATIENCE = 300.0  # seconds; a guard against hanging

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "kind": {"enum": ["cat", "cattle", "dog"]},
        "lives": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
LARK = 'start: "a" start "b" | "cde" start | "f"'
GRAMMARS = {
    "schema": GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(RECORD)),
    "regex": GrammarSpec(GrammarKind.REGEX, "(ab|abc|x{2,3})+-?[0-9]*(done)?"),
    "choice": GrammarSpec(GrammarKind.CHOICE, json.dumps(["to be", "to be or not", "not to be", "ä"])),
    "lark": GrammarSpec(GrammarKind.LARK, LARK),
    "call": GrammarSpec(
        GrammarKind.CALLS,
        full_grammar(
            "calls", calls_only([], [TextInput("w", LARK)], "hermes", at_most_one=True), Reasons.NEVER
        ),
    ),
}
WIDE = GrammarSpec(GrammarKind.REGEX, "[ab]*a[ab]{8}c")  # each new history needs lexer states
LETTERS = GrammarSpec(GrammarKind.REGEX, "[a-c]{8}")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


@pytest.fixture(autouse=True)
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, masks are not too slow, and the step waits until look-aheads can start."""
    for module in ("slot_grammars", "grammar_ahead"):
        monkeypatch.setattr(f"octavo.runner.{module}.SLOW_SECONDS", PATIENCE)
    monkeypatch.setattr("octavo.runner.slot_grammars.BEGIN_SECONDS", PATIENCE)


def opened(vocabulary: Vocabulary, spec: GrammarSpec | None, drawn: Sequence[int] = ()) -> SlotGrammars:
    """Return grammars with one slot."""
    slots = SlotGrammars(lambda: vocabulary, vocabulary.vocab_size)
    opening = SlotOpening(0, SamplingParams(grammar=spec), 0, (END,), 1, (1, *drawn))
    slots.begin(StepPlan(0, (), (opening,), ()))
    slots.allowed(0, soon())
    return slots


def draft(slots: SlotGrammars, draft_ids: Sequence[int]) -> None:
    """Begin a step whose slice has drafts."""
    count = len(draft_ids)
    piece = SequenceSlice(0, 0, (1, *draft_ids), 0, (), count + 1, num_drafted=count)
    slots.begin(StepPlan(1, (), (), (piece,)))


def soon() -> float:
    return time.monotonic() + PATIENCE


def masks_ahead(slots: SlotGrammars, num_drafted: int) -> list[list[int]]:
    found = slots.allowed_ahead(0, num_drafted, soon())
    return [allowed.mask.tolist() for allowed in found if allowed.mask is not None]


def mask_now(slots: SlotGrammars) -> list[int]:
    allowed = slots.allowed(0, soon())
    assert allowed is not None
    assert allowed.mask is not None, allowed
    return allowed.mask.tolist()


def mask_of(matcher: GrammarMatcher) -> list[int]:
    mask = torch.zeros(NUM_WORDS, dtype=torch.int32)
    matcher.fill(mask.data_ptr(), mask.nbytes)
    return mask.tolist()


def choices(mask: list[int]) -> list[int]:
    """Return what a mask allows, without the end."""
    return [token_id for token_id in range(END) if mask[token_id // 32] >> token_id % 32 & 1]


def guess(matcher: GrammarMatcher, dice: random.Random, count: int) -> tuple[list[int], list[list[int]]]:
    """Advance by random drafts, at times by a forbidden one, and return them with the expected masks."""
    draft_ids: list[int] = []
    masks = [mask_of(matcher)]
    while len(draft_ids) < count and (options := choices(masks[-1])):
        if dice.random() < 0.1:
            draft_ids.append(dice.choice(sorted({*b"abcf0 {}\0"} - {*options})))
            return draft_ids + dice.choices(b"ab", k=count - len(draft_ids)), masks[1:]
        draft_ids.append(dice.choice(options))
        matcher.append(draft_ids[-1])
        masks.append(mask_of(matcher))
    return draft_ids, masks[1:]


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_equal_those_of_a_matcher_that_appends_the_drafts(vocabulary: Vocabulary, name: str) -> None:
    compiled = compile_grammar(GRAMMARS[name], vocabulary)
    dice = random.Random(name)
    num_whole, num_cut = 0, 0
    for _ in range(12):
        answer = guess_answer(GrammarMatcher(compiled), dice, dice.randrange(4))
        slots = opened(vocabulary, GRAMMARS[name], answer)
        while options := choices(mask_now(slots)):
            draft_ids, expected = guess(GrammarMatcher(compiled, answer), dice, dice.randrange(1, 6))
            draft(slots, draft_ids)
            assert masks_ahead(slots, len(draft_ids)) == expected, (answer, draft_ids)
            num_whole += len(expected) == len(draft_ids)
            num_cut += len(expected) < len(draft_ids)
            num_accepted = dice.randint(0, len(expected))
            accepted = draft_ids[:num_accepted]
            options = choices(expected[num_accepted - 1]) if accepted else options
            if not options:
                break
            answer += (sampled := [*accepted, dice.choice(options)])
            slots.append(0, sampled, jump=False)
            assert mask_now(slots) == mask_of(GrammarMatcher(compiled, answer))
    assert num_whole > 10
    assert num_cut > 0


def guess_answer(matcher: GrammarMatcher, dice: random.Random, length: int) -> list[int]:
    """Return the beginning of an answer that the grammar allows."""
    answer: list[int] = []
    while len(answer) < length and (options := choices(mask_of(matcher))):
        answer.append(dice.choice(options))
        matcher.append(answer[-1])
    return answer


def test_an_end_among_drafts_is_rolled_back(vocabulary: Vocabulary) -> None:
    compiled = compile_grammar(GRAMMARS["regex"], vocabulary)
    slots = opened(vocabulary, GRAMMARS["regex"], b"ab")
    draft(slots, (END, END))
    assert masks_ahead(slots, 2) == [mask_of(GrammarMatcher(compiled, (*b"ab", END)))]
    slots.append(0, b"c", jump=False)
    draft(slots, b"ab")
    assert masks_ahead(slots, 2) == [mask_of(GrammarMatcher(compiled, text)) for text in (b"abca", b"abcab")]


def test_without_a_grammar_any_token_may_follow_a_draft(vocabulary: Vocabulary) -> None:
    slots = opened(vocabulary, None)
    draft(slots, b"xyz")
    assert slots.allowed_ahead(0, 3, time.monotonic()) == (ANY, ANY, ANY)


# -- the answer does not depend on drafts ------------------------------------------------------------------


def outcome(slots: SlotGrammars) -> object:
    allowed = slots.allowed(0, soon())
    assert allowed is not None
    return allowed.failure if allowed.mask is None else allowed.mask.tolist()


def vocabulary_of_words() -> Vocabulary:
    """Return a vocabulary with longer tokens, whose masks need lexer states that no other query needs."""
    spellings = (itertools.product(b"ab", repeat=length) for length in (2, 3, 4))
    words = [bytes(letters) for letters in itertools.chain(*spellings)]
    pieces = [*(bytes([byte]) for byte in range(END)), b"<end>", *words]
    return make_vocabulary(pieces, [END], [END], lambda text: list(text.encode()))


def test_limits_are_reached_at_the_same_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by an answer whose drafts are wrong, or accepted and appended together."""
    vocabulary = vocabulary_of_words()
    monkeypatch.setattr("octavo.grammar.compiler.MAX_LEXER_STATES", 100)
    num_ended, num_stopped = 0, 0
    for seed in range(5):
        dice = random.Random(seed)
        answer = dice.choices(b"ab", k=80)
        plain = opened(vocabulary, WIDE)
        expected = [outcome(plain)]
        for token_id in answer:
            plain.append(0, (token_id,), jump=False)
            expected.append(outcome(plain))
        assert (last := slot_failure(plain)) is FailureCode.GRAMMAR_TOO_COMPLEX, last

        drafted, num_known = opened(vocabulary, WIDE), 0
        while num_known < len(answer):
            assert outcome(drafted) == expected[num_known]
            draft(drafted, dice.choices(b"ab", k=8))
            num_stopped += not masks_ahead(drafted, 8) and isinstance(expected[num_known], list)
            sampled = answer[num_known : num_known + dice.randint(1, 5)]
            drafted.append(0, sampled, jump=False)
            num_known += len(sampled)
        num_ended += outcome(drafted) == expected[-1]
    assert num_ended == 5
    assert num_stopped > 0, "the look-aheads reached their own limits first"


@pytest.mark.parametrize("first_draft", [0, 4, 9])
def test_no_draft_is_accepted_beyond_a_limit(monkeypatch: pytest.MonkeyPatch, first_draft: int) -> None:
    """All drafts are right. The first one comes when the other matcher has made queries for some tokens."""
    vocabulary = vocabulary_of_words()
    for max_states, seed in itertools.product((100, 200), range(3)):
        monkeypatch.setattr("octavo.grammar.compiler.MAX_LEXER_STATES", max_states)
        answer = random.Random(seed).choices(b"ab", k=80)
        numbers_sampled = []
        for drafts in (False, True):
            slots, num_sampled = opened(vocabulary, WIDE), 0
            while slot_failure(slots) is None:
                num_right = 0
                if drafts and num_sampled >= first_draft:
                    draft(slots, answer[num_sampled : num_sampled + 8])
                    num_right = len(masks_ahead(slots, 8))
                sampled = answer[num_sampled : num_sampled + 1 + num_right]
                slots.append(0, sampled, jump=False)
                num_sampled += len(sampled)
            numbers_sampled.append(num_sampled)
        assert numbers_sampled[0] == numbers_sampled[1] < len(answer) - 8


def slot_failure(slots: SlotGrammars) -> FailureCode | None:
    allowed = slots.allowed(0, soon())
    return None if allowed is None or allowed.failure is None else allowed.failure.code


@pytest.mark.parametrize("name", GRAMMARS)
def test_tokens_appended_together_force_the_same_tokens(vocabulary: Vocabulary, name: str) -> None:
    compiled = compile_grammar(GRAMMARS[name], vocabulary)
    dice = random.Random(name)
    for _ in range(10):
        answer = guess_answer(GrammarMatcher(compiled), dice, dice.randint(2, 12))
        single = opened(vocabulary, GRAMMARS[name], answer[:-1])
        single.append(0, answer[-1:], jump=True)
        together = opened(vocabulary, GRAMMARS[name])
        together.append(0, answer, jump=True)
        assert single.forced(0, soon()) == together.forced(0, soon())
        for slots in (single, together):
            slots.mark_forced_reported(0)
        assert mask_now(single) == mask_now(together)
        assert ahead_of_any(single) == ahead_of_any(together)


def ahead_of_any(slots: SlotGrammars) -> list[list[int]]:
    """Return what may follow a draft: this shows which answer the look-ahead believes in."""
    draft_ids = choices(mask_now(slots))[:1]
    if not draft_ids:
        return []
    draft(slots, draft_ids)
    (mask,) = masks_ahead(slots, 1)
    return [mask]


# -- look-aheads that fail or are late ---------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["budget", "slow mask", "limit", "fault"])
def test_an_ended_look_ahead_does_not_end_the_answer(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def fail(*_: object) -> None:
        raise GrammarError("limit") if reason == "limit" else RuntimeError("fault")

    slots = opened(vocabulary, LETTERS)
    if reason == "budget":
        monkeypatch.setattr("octavo.runner.grammar_ahead.AHEAD_SECONDS", 0.0)
    elif reason == "slow mask":
        monkeypatch.setattr("octavo.runner.grammar_ahead.SLOW_SECONDS", -1.0)
    else:
        monkeypatch.setattr(GrammarMatcher, "roll_back", fail)
    draft(slots, b"ab")
    assert len(masks_ahead(slots, 2)) == (1 if reason == "slow mask" else 2)
    for _ in range(7):
        slots.append(0, b"c", jump=False)
        assert choices(mask_now(slots)) == [*b"abc"]
        draft(slots, b"ab")
        assert slots.allowed_ahead(0, 2, soon()) == ()
    slots.append(0, b"c", jump=False)
    assert choices(mask_now(slots)) == []


class Gate:
    """Look-aheads stop before mask number `after` until the gate opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after = 0
        self.is_reached, self._opening = threading.Event(), threading.Event()
        append = list.append

        def wait_and_append(masks: "GatedMasks", mask: torch.Tensor) -> None:
            if len(masks) == self.after:
                self.is_reached.set()
                self._opening.wait(PATIENCE)
            append(masks, mask)

        class GatedMasks(list[torch.Tensor]):
            append = wait_and_append

        make = LookAhead.__init__

        def make_gated(look: LookAhead) -> None:
            make(look)
            look.masks = GatedMasks()

        monkeypatch.setattr(LookAhead, "__init__", make_gated)

    def open(self) -> None:
        self._opening.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


def test_a_late_look_ahead_catches_up(vocabulary: Vocabulary, gate: Gate) -> None:
    compiled = compile_grammar(LETTERS, vocabulary)
    gate.after = 1
    slots = opened(vocabulary, LETTERS)
    draft(slots, b"ab")
    assert gate.is_reached.wait(PATIENCE)
    (first,) = slots.allowed_ahead(0, 2, time.monotonic())
    assert first.mask is not None
    assert first.mask.tolist() == mask_of(GrammarMatcher(compiled, b"a"))
    for text in (b"cc", b"cccc"):  # steps while it is at work
        slots.append(0, b"cc", jump=False)
        assert mask_now(slots) == mask_of(GrammarMatcher(compiled, text))
        draft(slots, b"ab")
        assert slots.allowed_ahead(0, 2, soon()) == ()
    gate.open()
    (grammar,) = slots._slots.values()
    assert grammar.ahead is not None
    assert grammar.ahead._last is not None
    grammar.ahead._last.done.result(PATIENCE)
    slots.append(0, b"cc", jump=False)
    draft(slots, b"aa")
    expected = [mask_of(GrammarMatcher(compiled, b"cccccc" + drafts)) for drafts in (b"a", b"aa")]
    assert masks_ahead(slots, 2) == expected


def test_a_slot_that_is_closed_during_a_look_ahead(vocabulary: Vocabulary, gate: Gate) -> None:
    slots = opened(vocabulary, LETTERS)
    draft(slots, b"ab")
    assert gate.is_reached.wait(PATIENCE)
    opening = SlotOpening(0, SamplingParams(grammar=WIDE), 0, (END,), 1, (1,))
    slots.begin(StepPlan(2, (0,), (opening,), ()))
    gate.open()
    draft(slots, b"ab")
    compiled = compile_grammar(WIDE, vocabulary)
    assert masks_ahead(slots, 2) == [mask_of(GrammarMatcher(compiled, text)) for text in (b"a", b"ab")]
