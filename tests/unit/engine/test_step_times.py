"""What engines report about their speed."""

import pytest

from octavo.engine.step_times import MIN_PART, StepTimes
from octavo.plan import SequenceSlice

PER_STEP, PER_SEQUENCE, PER_TOKEN = 0.010, 0.004, 0.0005


def pieces(num_decodes: int, num_prompt_tokens: int = 0) -> list[SequenceSlice]:
    lengths = [1] * num_decodes + [num_prompt_tokens] * bool(num_prompt_tokens)
    return [SequenceSlice(0, 0, (0,) * length, 0, (), 1) for length in lengths]


def seconds(num_decodes: int, num_prompt_tokens: int = 0) -> float:
    return PER_STEP + num_decodes * PER_SEQUENCE + num_prompt_tokens * PER_TOKEN


def test_the_parts_of_a_step_are_found() -> None:
    times = StepTimes()
    for number in range(40):
        num_decodes, num_tokens = 1 + 5 * number % 13, 20 + 37 * number % 400
        times.note(pieces(num_decodes), 0, seconds(num_decodes))
        if number >= 20:
            times.note(pieces(num_decodes, num_tokens), 0, seconds(num_decodes, num_tokens))
    assert times.per_sequence == pytest.approx(PER_SEQUENCE)
    assert times.per_prompt_token == pytest.approx(PER_TOKEN)


def test_a_faster_engine_is_noticed() -> None:
    times = StepTimes()
    for factor, count in ((1.0, 200), (0.25, 400)):
        for number in range(count):
            times.note(pieces(1 + number % 8), 0, factor * seconds(1 + number % 8))
    assert times.per_sequence == pytest.approx(PER_SEQUENCE / 4, rel=0.01)


def test_a_number_of_sequences_that_never_varies_gives_the_minimum() -> None:
    times = StepTimes()
    for _ in range(10):
        times.note(pieces(4), 0, 0.2)
    assert times.per_sequence == pytest.approx(MIN_PART * 0.2)


def test_a_sequence_adds_at_most_its_part_of_a_step() -> None:
    times = StepTimes()
    for num_decodes, step_seconds in ((8, 0.01), (8, 0.01), (9, 0.5)):  # the machine was busy with other work
        times.note(pieces(num_decodes), 0, step_seconds)
    assert times.per_sequence <= 0.52 / 25 * 1.05


def test_nothing_is_known_at_first() -> None:
    times = StepTimes()
    assert (times.per_prompt_token, times.per_sequence) == (0.0, 0.0)
    times.note(pieces(0, 4), 0, 0.4)
    assert times.per_prompt_token == pytest.approx(0.1)


def test_a_draft_counts_as_a_sequence_and_not_as_a_prompt() -> None:
    times, without_drafts = StepTimes(), StepTimes()
    for number in range(40):
        num_sequences = 1 + 5 * number % 13
        times.note(pieces(num_sequences), 3 * num_sequences, seconds(4 * num_sequences))
        without_drafts.note(pieces(4 * num_sequences), 0, seconds(4 * num_sequences))
    assert times.per_sequence == without_drafts.per_sequence > 0
    assert times.per_prompt_token == 0.0


def test_a_prompt_beside_drafts_is_measured_without_them() -> None:
    times = StepTimes()
    for num_decodes in (2, 5, 9, 4):
        times.note(pieces(num_decodes), 0, seconds(num_decodes))
    times.note(pieces(2, 100), 2 * 3, seconds(2 * 4, 100))
    assert times.per_prompt_token == pytest.approx(PER_TOKEN)
