"""Slot grammars: a mask for every slot that samples, and no state shared between owners of a slot."""

import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from octavo.grammar.matcher import TOO_COMPLEX, GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.plan import SequenceSlice, SlotOpening, StepPlan
from octavo.protocol import Failure, FailureCode, GrammarKind, GrammarSpec, SamplingParams
from octavo.runner.slot_grammars import (
    MAX_FORCED,
    SLOW_NICENESS,
    AllowedTokens,
    SlotGrammars,
    _lower_priority,
)

LETTERS = GrammarSpec(GrammarKind.REGEX, "[a-c]+")
DIGITS = GrammarSpec(GrammarKind.REGEX, "[1-3]{2}")
LONG = GrammarSpec(GrammarKind.REGEX, "[ab]c{100}")
FORCED = GrammarSpec(GrammarKind.REGEX, "xyz[0-9]+")
BROKEN = GrammarSpec(GrammarKind.REGEX, "(a")
END = 256
PATIENCE = 300.0  # seconds; a guard against hanging


def grammars() -> SlotGrammars:
    return SlotGrammars(byte_vocabulary, 257)


def opening(slot: int, grammar: GrammarSpec | None, drawn: bytes = b"") -> SlotOpening:
    return SlotOpening(slot, SamplingParams(grammar=grammar), 0, (END,), 2, (1, 2, *drawn))


def plan(*drawing: int, opened: tuple[SlotOpening, ...] = (), closed: tuple[int, ...] = ()) -> StepPlan:
    slices = tuple(SequenceSlice(slot, 0, (1,), 0, (), 1) for slot in drawing)
    return StepPlan(1, closed, opened, slices)


def look(slots: SlotGrammars, slot: int) -> AllowedTokens:
    found = slots.allowed(slot, time.monotonic() + PATIENCE)
    assert found is not None
    return found


def allowed(slots: SlotGrammars, slot: int) -> set[int] | None:
    mask = look(slots, slot).mask
    return None if mask is None else {i for i in range(257) if int(mask[i // 32]) >> i % 32 & 1}


def forced(slots: SlotGrammars, slot: int) -> tuple[int, ...]:
    tokens = slots.forced(slot, time.monotonic() + PATIENCE)
    slots.mark_forced_reported(slot)
    return tokens


def test_every_slot_has_its_own_grammar() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, 2, opened=(opening(0, LETTERS), opening(1, None), opening(2, DIGITS, b"1"))))
    assert allowed(slots, 0) == set(b"abc")
    assert allowed(slots, 1) is None
    assert allowed(slots, 2) == set(b"123")
    assert slots.append(0, b"a", jump=True)
    assert slots.append(2, b"3", jump=False)
    assert not slots.append(1, (7,), jump=True)
    assert allowed(slots, 0) == {*b"abc", END}
    assert allowed(slots, 2) == {END}


def test_a_reused_slot_keeps_no_state() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, LETTERS), opening(1, DIGITS))))
    slots.begin(plan(0, 1, closed=(0, 1), opened=(opening(0, DIGITS), opening(1, None))))
    assert allowed(slots, 0) == set(b"123")
    assert allowed(slots, 1) is None
    slots.begin(plan(0, opened=(opening(0, None),)))  # reopened without being closed
    assert allowed(slots, 0) is None


def test_a_failing_grammar_affects_only_its_slot() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, BROKEN), opening(1, LETTERS))))
    refused = look(slots, 0).failure
    assert refused is not None
    assert refused.code is FailureCode.ENGINE_FAILED
    assert "unclosed group" in refused.message
    assert allowed(slots, 1) == set(b"abc")
    assert look(slots, 1).failure is None
    slots.begin(plan(2, opened=(opening(2, LETTERS, b"x"),)))  # a history that the grammar does not allow
    assert look(slots, 2).failure == Failure(FailureCode.GRAMMAR_TOO_COMPLEX, TOO_COMPLEX)


def test_forced_tokens_per_step_are_limited() -> None:
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, LONG), opening(1, LONG))))
    allowed(slots, 0), allowed(slots, 1)
    slots.append(0, b"a", jump=True)
    slots.append(1, b"a", jump=False)
    assert forced(slots, 0) == (ord("c"),) * MAX_FORCED
    assert forced(slots, 1) == ()
    assert allowed(slots, 0) == allowed(slots, 1) == {ord("c")}


def test_the_vocabulary_is_built_once_on_first_use() -> None:
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


def test_a_prepared_vocabulary_is_not_built_again() -> None:
    made: list[int] = []

    def make() -> Vocabulary:
        made.append(1)
        return byte_vocabulary()

    slots = SlotGrammars(make, 257)
    slots.prepare(False)
    slots.prepare(True)
    assert len(made) == 1
    slots.begin(plan(0, opened=(opening(0, LETTERS),)))
    assert allowed(slots, 0)
    assert len(made) == 1


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Masks of forced tokens are not computed until this gate opens."""
    gate, fill = threading.Event(), GrammarMatcher.fill

    def fill_late(matcher: GrammarMatcher, address: int, num_bytes: int) -> None:
        if matcher.forced is not None:
            gate.wait()
        fill(matcher, address, num_bytes)

    monkeypatch.setattr(GrammarMatcher, "fill", fill_late)
    yield gate
    gate.set()


def test_a_late_mask_does_not_delay_other_slots(gate: threading.Event) -> None:
    """`FORCED` starts with forced tokens, so its first mask is late here."""
    slots = grammars()
    slots.begin(plan(0, 1, opened=(opening(0, FORCED), opening(1, LETTERS))))
    assert slots.allowed(0, time.monotonic()) is None
    assert allowed(slots, 1) == set(b"abc")
    assert slots.late(idle=False) == (0,)
    assert slots.late(idle=True) == (0,)
    gate.set()
    assert allowed(slots, 0) == {ord("x")}
    assert slots.late(idle=False) == ()


def test_a_closed_slot_is_no_longer_late(gate: threading.Event) -> None:
    slots = grammars()
    slots.begin(plan(0, opened=(opening(0, FORCED),)))
    assert slots.allowed(0, time.monotonic()) is None
    slots.begin(plan(0, closed=(0,), opened=(opening(0, LETTERS),)))
    assert slots.late(idle=True) == ()
    assert allowed(slots, 0) == set(b"abc")


def test_late_forced_tokens_are_sampled_next(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, append = threading.Event(), GrammarMatcher.append

    def append_late(matcher: GrammarMatcher, token_id: int) -> None:
        gate.wait()
        append(matcher, token_id)

    monkeypatch.setattr(GrammarMatcher, "append", append_late)
    slots = grammars()
    slots.begin(plan(0, opened=(opening(0, LONG),)))
    allowed(slots, 0)
    slots.append(0, b"a", jump=True)
    assert slots.forced(0, time.monotonic()) == ()
    assert slots.allowed(0, time.monotonic()) is None
    gate.set()
    assert look(slots, 0).forced == (ord("c"),) * MAX_FORCED
    slots.mark_forced_reported(0)
    assert allowed(slots, 0) == {ord("c")}


def test_a_grammar_has_a_time_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runner.slot_grammars.BUDGET_SECONDS", 0.0)
    slots = grammars()
    slots.begin(plan(0, opened=(opening(0, LETTERS),)))
    failure = look(slots, 0).failure
    assert failure is not None
    assert failure.code is FailureCode.GRAMMAR_TOO_COMPLEX


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
@pytest.mark.parametrize("added", [0, SLOW_NICENESS + 1, 19])
def test_a_thread_for_slow_grammars_has_a_lower_priority_than_its_engine(added: int) -> None:
    """An engine that was started with a low priority needs a privilege to raise that of a thread."""
    seen = []

    def run() -> None:
        before = os.nice(added)
        _lower_priority()
        seen.append((before, os.nice(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((before, after),) = seen
    assert after == min(19, before + SLOW_NICENESS)
