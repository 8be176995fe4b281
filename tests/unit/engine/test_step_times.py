"""What engines report about their speed."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.step_times import StepTimes


@dataclass(frozen=True)
class Piece:
    token_ids: tuple[int, ...]


@given(
    steps=st.lists(st.tuples(st.integers(1, 20), st.integers(2, 500)), min_size=5, max_size=60),
    per_step=st.floats(0.001, 0.1),
    per_sequence=st.floats(0.002, 0.01),
    per_token=st.floats(0.0001, 0.01),
)
def test_the_parts_of_a_step_are_found(
    steps: list[tuple[int, int]], per_step: float, per_sequence: float, per_token: float
) -> None:
    """Steps that take exactly as long as a sum of three parts; the numbers of sequences vary."""
    times = StepTimes()
    for num_decodes in (1, 9, 2, 7):
        times.note([Piece((0,))] * num_decodes, per_step + num_decodes * per_sequence)  # type: ignore[list-item]
    for num_decodes, num_tokens in steps:
        decodes = [Piece((0,))] * num_decodes
        times.note(decodes, per_step + num_decodes * per_sequence)  # type: ignore[arg-type]
        seconds = per_step + num_decodes * per_sequence + num_tokens * per_token
        times.note([*decodes, Piece((0,) * num_tokens)], seconds)  # type: ignore[list-item]
    minimum = 0.05 * (per_step + 20 * per_sequence)
    assert times.per_sequence == pytest.approx(per_sequence, rel=0.05, abs=minimum)
    if times.per_sequence == pytest.approx(per_sequence, rel=1e-3):
        assert times.per_prompt_token == pytest.approx(per_token, rel=0.01)


def test_nothing_is_known_at_first() -> None:
    times = StepTimes()
    assert (times.per_prompt_token, times.per_sequence) == (0.0, 0.0)
    times.note([Piece((0, 0, 0, 0))], 0.4)  # type: ignore[list-item]
    assert times.per_prompt_token == pytest.approx(0.1)
