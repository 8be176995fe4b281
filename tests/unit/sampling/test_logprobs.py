"""Logprobs are computed from the raw logits, finite, and in a fixed order."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.protocol import LOGPROB_FLOOR, TokenLogprob
from octavo.sampling import RowError, score_rows
from octavo.sampling.logprobs import best_ids, token_logprob


def random_rows(count: int, vocab: int) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(5)) * 4


def test_values_are_the_log_softmax_of_the_raw_logits() -> None:
    rows = random_rows(6, 2003)
    exact = torch.log_softmax(rows.double(), dim=-1)
    for row, reference, scored in zip(
        rows, exact, score_rows(rows, [7, 0, 2002, 5, 5, 1], top=4), strict=True
    ):
        assert scored.logprob == pytest.approx(float(reference[scored.token_id]), abs=1e-5)
        best = torch.topk(row, 4).indices.tolist()
        assert [token for token, _ in scored.top] == best
        assert [value for _, value in scored.top] == pytest.approx(reference[best].tolist(), abs=1e-5)


def test_batching_does_not_change_a_rows_scores() -> None:
    rows = random_rows(9, 4001)
    ids = list(range(9))
    together = score_rows(rows, ids, top=5)
    alone = [score_rows(rows[i : i + 1], [i], top=5)[0] for i in ids]
    assert together == alone


@settings(deadline=None)
@given(values=st.lists(st.integers(0, 3), min_size=1, max_size=40), count=st.integers(0, 50))
def test_equal_logits_are_listed_by_id(values: list[int], count: int) -> None:
    expected = sorted(range(len(values)), key=lambda token: (-values[token], token))[:count]
    assert best_ids(torch.tensor(values, dtype=torch.float32), count) == expected


def test_the_first_alternative_is_the_greedy_token_even_if_rounded_logprobs_tie() -> None:
    # These two are equal as float32 logprobs, because the normaliser is far larger than their difference.
    row = torch.tensor([1.0, 1.0 + 2**-23, -50.0, 60.0, 60.0, 60.0])
    top = token_logprob(row, 3, top=5).top
    assert [token for token, _ in top] == [3, 4, 5, 1, 0]
    assert top[3][1] == top[4][1]


def test_infinite_logprobs_are_clamped_to_the_floor() -> None:
    row = torch.tensor([0.0, -math.inf, -1e30, 1.0])
    scored = token_logprob(row, 1, top=4)
    assert scored.logprob == LOGPROB_FLOOR
    assert [value for token, value in scored.top if token in (1, 2)] == [LOGPROB_FLOOR, LOGPROB_FLOOR]
    json.dumps([scored.logprob, scored.top], allow_nan=False)


def test_zero_alternatives() -> None:
    assert token_logprob(torch.tensor([0.0, 0.0]), 1, top=0) == TokenLogprob(
        1,
        pytest.approx(-math.log(2)),  # type: ignore[arg-type]
        (),
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_without_usable_logits_is_rejected(bad: float) -> None:
    rows = random_rows(3, 50)
    rows[1, 7] = bad
    with pytest.raises(RowError, match="usable"):
        score_rows(rows, [0, 0, 0], top=1)
