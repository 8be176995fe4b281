import random

import pytest

from octavo.observe.recent import WINDOW_SECONDS, RecentLatencies, RecentTimes


@pytest.mark.parametrize("scale", [0.0005, 0.02, 3.0])
def test_quantiles_are_accurate(scale: float) -> None:
    drawn, recent = random.Random(0), RecentTimes()
    values = [scale * drawn.lognormvariate(0, 0.7) for _ in range(5000)]
    for number, value in enumerate(values):
        recent.observe(value, 100 + number / 1000)
    values.sort()
    for part, found in zip((0.5, 0.9, 0.99), recent.quantiles(105, 0.5, 0.9, 0.99), strict=True):
        assert found == pytest.approx(values[int(part * len(values))], rel=0.06)


def test_values_outside_the_window_are_dropped() -> None:
    recent = RecentTimes()
    assert recent.quantiles(0.0, 0.5) == [None]
    recent.observe(1.0, 100.5)
    recent.observe(0.01, 105.5)
    assert recent.quantiles(109, 0.99)[0] == pytest.approx(1.0, rel=0.1)
    assert recent.quantiles(100.5 + WINDOW_SECONDS, 0.99)[0] == pytest.approx(0.01, rel=0.1)
    assert recent.quantiles(200, 0.99) == [None]


def test_values_outside_the_bucket_range() -> None:
    recent = RecentTimes()
    recent.observe(0.0, 1)
    assert recent.quantiles(1, 0.5)[0] == pytest.approx(0, abs=1e-4)
    recent.observe(1e9, 1)
    assert (recent.quantiles(1, 0.99)[0] or 0) > 60


def test_latencies_are_tracked_separately() -> None:
    recent = RecentLatencies()
    recent.inter_token.observe(0.5, 10)
    latency = recent.latency(10)
    assert (latency.ttft_p50, latency.ttft_p99) == (None, None)
    assert latency.itl_p50 == pytest.approx(latency.itl_p99, rel=0.1) == pytest.approx(0.5, rel=0.1)
