"""Compares figures with a manual count, and percentiles with their definition."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.serve.record import LoadRecord
from octavo.bench.serve.summary import Slo, distribution, percentile, summarise

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


def by_definition(values: Sequence[float], percent: float) -> float:
    """Return the percentile by linear interpolation: ranks 0 to n - 1 correspond to 0 to 100 percent."""
    ordered = sorted(values)
    rank = percent / 100 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


@given(VALUES)
def test_percentiles_match_their_definition(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    assert found.count == len(values)
    assert (found.min, found.max) == (min(values), max(values))
    assert found.mean == pytest.approx(sum(values) / len(values))
    for percent, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        assert value == pytest.approx(by_definition(values, percent), rel=1e-9, abs=1e-9)
        assert value == pytest.approx(percentile(values, percent))


def test_an_empty_sample_has_no_distribution() -> None:
    assert distribution([]) is None


def record(number: int, sent: float, times: Sequence[float], ended: float, **other: object) -> LoadRecord:
    fields = {
        "number": number,
        "prompt_tokens": 100,
        "output_tokens": len(times),
        "due_at": sent,
        "sent_at": sent,
        "ended_at": ended,
        "chunk_times": tuple(times),
        "chunk_tokens": None,
        "reported_prompt_tokens": 100,
        "reported_cached_tokens": 25,
        "reported_completion_tokens": len(times),
        "reported_queue_seconds": None,
        "finish_reason": "length",
        "status": 200,
        "error": None,
    }
    return LoadRecord(**fields | other)  # type: ignore[arg-type]


FAST = record(0, 1.0, (1.5, 1.6, 1.7, 1.8), 2.0)
SLOW = record(1, 1.5, (4.5, 4.6, 5.6), 6.0)
FAILED = record(2, 2.0, (), 2.1, reported_completion_tokens=None, error="no", status=500)
ALL = (FAST, SLOW, FAILED)


def test_figures_of_three_requests_match_a_manual_count() -> None:
    found = summarise(ALL, Slo(ttft=1.0))
    assert (found.num_requests, found.num_failed, found.seconds) == (3, 1, 5.0)
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (200, 50, 7)
    assert found.cache_hit_rate == 0.25
    assert found.requests_per_second == pytest.approx(2 / 5)
    assert found.output_tokens_per_second == pytest.approx(7 / 5)
    assert found.total_tokens_per_second == pytest.approx(207 / 5)
    assert found.ttft is not None
    assert (found.ttft.min, found.ttft.max) == pytest.approx((0.5, 3.0))
    assert found.tpot is not None
    assert (found.tpot.min, found.tpot.max) == pytest.approx((0.1, 0.55))
    assert found.itl is not None
    assert found.itl.count == 5
    assert found.itl.p50 == pytest.approx(0.1)
    assert found.e2e is not None
    assert found.e2e.max == pytest.approx(4.5)
    assert found.prefill_tokens_per_second == pytest.approx((100 / 0.5 + 100 / 3) / 2)
    assert found.decode_tokens_per_second == pytest.approx(1 / 0.325)
    assert found.itl_is_per_token
    assert found.num_within_slo == 1
    assert found.goodput == pytest.approx(1 / 5)
    assert found.slo_attainment == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(), [True, True, False]),
        (Slo(ttft=0.6), [True, False, False]),
        (Slo(tpot=0.2), [True, False, False]),
        (Slo(itl=0.5), [True, False, False]),
        (Slo(e2e=0.9), [False, False, False]),
        (Slo(ttft=3.1, tpot=0.6, itl=1.1, e2e=5), [True, True, False]),
        (Slo(ttft=3.1, tpot=0.5, itl=1.1, e2e=5), [True, False, False]),
    ],
)
def test_slo_decisions(slo: Slo, met: list[bool]) -> None:
    assert [slo.is_met(one) for one in ALL] == met


def test_chunks_with_several_tokens() -> None:
    counted = record(0, 0.0, (1.0, 2.0), 2.0, reported_completion_tokens=5, chunk_tokens=(2, 3))
    assert counted.tpot == pytest.approx(1 / 3)
    assert counted.tokens_by_chunk == (2.0, 3.0)
    unreported = record(0, 0.0, (1.0, 2.0), 2.0, reported_completion_tokens=5)
    assert unreported.tpot == pytest.approx(1 / 4)
    assert unreported.tokens_by_chunk == (2.5, 2.5)
    assert not summarise([counted], Slo()).itl_is_per_token


def test_chunks_are_counted_when_the_server_reports_no_usage() -> None:
    silent = record(0, 0.0, (1.0, 2.0), 2.0, reported_completion_tokens=None, reported_cached_tokens=None)
    found = summarise([silent], Slo())
    assert found.completion_tokens == 2
    assert found.cached_tokens is None
    assert found.cache_hit_rate is None
    assert found.goodput is None


def test_drafts_of_successful_requests_are_counted() -> None:
    drafts = {"reported_drafted_tokens": 8, "reported_accepted_tokens": 3}
    failed = record(2, 2.0, (), 2.1, error="no", **drafts)
    found = summarise([FAST, record(1, 1.5, (4.5, 4.6), 6.0, **drafts), failed], Slo())
    assert (found.drafted_tokens, found.accepted_tokens, found.acceptance) == (8, 3, 3 / 8)
    assert summarise([FAST], Slo()).acceptance is None


def test_a_load_without_a_success_has_a_summary() -> None:
    found = summarise([FAILED], Slo(ttft=1.0))
    assert (found.ttft, found.itl, found.goodput, found.output_tokens_per_second) == (None, None, 0.0, 0.0)
