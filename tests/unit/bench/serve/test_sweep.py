"""Sweeps find the knee of simulated servers with a known capacity."""

import math
from dataclasses import replace

import pytest

from octavo.bench.serve import Closed, LoadReport, Poisson, Slo, Steady, Workload
from octavo.bench.serve.report import ClientFacts, WorkloadFacts
from octavo.bench.serve.summary import summarise
from octavo.bench.serve.sweep import SweepBy, SweepPlan, SweepPoint, climb, run_sweep
from octavo.bench.serve.target import find_target
from octavo.bench.serve.workload import WORKLOADS
from octavo.errors import ConfigError
from unit.bench.serve.fake_server import FakeServer, running

BASE = WORKLOADS["baseline"]


class ServerWithKnee:
    """Handles `capacity` requests per second (or at once); beyond it, only the latency grows."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.asked: list[tuple[float, int, int]] = []

    def run(self, workload: Workload, number: int) -> LoadReport:
        arrivals = workload.arrivals
        level = arrivals.concurrency if isinstance(arrivals, Closed) else arrivals.rate  # type: ignore[union-attr]
        self.asked.append((level, workload.num_requests, number))
        is_late = level > self.capacity
        summary = replace(
            summarise([], Slo()),
            num_requests=workload.num_requests,
            num_within_slo=workload.num_requests // 2 if is_late else workload.num_requests,
            output_tokens_per_second=100 * min(level, self.capacity),
        )
        facts = WorkloadFacts.of(workload)
        return LoadReport("0", 0.0, "u", "m", "ids", facts, 0, Slo(), ClientFacts(0, 0, 0), summary, ())


def swept(capacity: float, plan: SweepPlan, slo: Slo) -> list[SweepPoint]:
    return list(climb(BASE, plan, slo, ServerWithKnee(capacity).run))


@pytest.mark.parametrize("slo", [Slo(), Slo(ttft=1.0)])
@pytest.mark.parametrize("capacity", [1.0, 1.3, 5.0, 6.7, 100.0])
def test_the_knee_is_found(capacity: float, slo: Slo) -> None:
    points = swept(capacity, SweepPlan(num_halvings=5), slo)
    knee = max(point.level for point in points if point.holds)
    # Without an SLO, a level somewhat above the capacity still counts as growth.
    assert 2 ** (-1 / 16) * capacity <= knee <= (capacity if slo.is_given else 1.5 * capacity)
    assert min(point.level for point in points if not point.holds) <= max(2 * knee, 2.0)


def test_a_sweep_without_a_knee_ends_at_the_last_level() -> None:
    points = swept(1e9, SweepPlan(last=20.0), Slo())
    assert [point.level for point in points] == [1, 2, 4, 8, 16, 20]
    assert all(point.holds for point in points)


def test_a_sweep_of_a_slow_server_ends_at_the_first_level() -> None:
    points = swept(0.1, SweepPlan(), Slo(ttft=1.0))
    assert [(point.level, point.holds) for point in points] == [(1.0, False)]


def test_concurrency_levels_are_integers_and_run_once() -> None:
    server = ServerWithKnee(11)
    plan = SweepPlan(SweepBy.CONCURRENCY, num_halvings=9)
    points = list(climb(BASE, plan, Slo(ttft=1.0), server.run))
    levels = [level for level, _, _ in server.asked]
    assert len(set(levels)) == len(levels)
    assert all(level == int(level) for level in levels)
    assert max(point.level for point in points if point.holds) == 11
    assert [number for _, _, number in server.asked] == list(range(len(levels)))


def test_levels_scale_the_number_of_requests_and_keep_the_arrival_pattern() -> None:
    plan = SweepPlan(requests_per_level=10)
    assert plan.workload(BASE, 4.0).num_requests == 40
    assert plan.workload(BASE, 0.1).num_requests == 8
    assert plan.workload(BASE, 4.0).arrivals == Poisson(4.0)
    assert plan.workload(WORKLOADS["chunked_prefill"], 4.0).arrivals == Steady(4.0)
    assert SweepPlan(SweepBy.CONCURRENCY).workload(BASE, 4.0).arrivals == Closed(4)


@pytest.mark.parametrize("bad", [{"first": 0.0}, {"first": 8.0, "last": 4.0}, {"attainment": 1.5}])
def test_invalid_plans_are_rejected(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"--(from|attain)"):
        SweepPlan(**bad)  # type: ignore[arg-type]


def test_a_sweep_over_http() -> None:
    seen: list[SweepPoint] = []
    plan = SweepPlan(SweepBy.CONCURRENCY, last=4.0, requests_per_level=2)
    with running(FakeServer()) as server:
        target = find_target(server.url)
        report = run_sweep(target, BASE, plan, slo=Slo(e2e=60.0), seed=5, on_point=seen.append)
        prompts = [str(one["prompt"]) for one in server.asked]
    assert [point.level for point in report.points] == [1, 2, 4] == [point.level for point in seen]
    assert (report.knee, report.is_end_of_range) == (4.0, True)
    assert len(set(prompts)) == len(prompts)  # levels do not share prompts
    assert type(report).of_json(report.as_json()) == report
    assert math.isclose(report.points[0].summary.slo_attainment or 0, 1.0)
