"""Increases the load until the server no longer keeps up, to find the knee.

The level (a rate, or a number of concurrent requests) is doubled while the server sustains it. Then the
interval between the last sustained level and the first one that was not is bisected a few times. A level is
sustained if enough of its requests meet the SLO. Without an SLO, it is sustained if no request failed and
log(throughput) grew at least half as much as log(load): this ratio is 1 while the server keeps up and 0
when throughput is saturated.
"""

import itertools
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

import octavo
from octavo.bench.serve.arrivals import Closed, Poisson, Steady
from octavo.bench.serve.load import REQUEST_SECONDS, Watch, run_load
from octavo.bench.serve.report import ClientFacts, LoadReport, WorkloadFacts
from octavo.bench.serve.summary import Slo, Summary
from octavo.bench.serve.target import LoadTarget
from octavo.bench.serve.workload import Workload
from octavo.errors import ConfigError

MIN_SLOPE = 0.5
MIN_REQUESTS = 8


class SweepBy(StrEnum):
    RATE = "rate"  # requests per second, open loop
    CONCURRENCY = "concurrency"  # concurrent requests, closed loop


@dataclass(frozen=True)
class SweepPlan:
    by: SweepBy = SweepBy.RATE
    first: float = 1.0
    last: float = 1024.0  # highest level
    requests_per_level: float = 10.0  # multiple of the level: seconds, or rounds of requests
    num_halvings: int = 2
    attainment: float = 0.9  # fraction of the requests that must meet the SLO

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.last:
            raise ConfigError(
                f"no levels from {self.first:g} to {self.last:g}: --from must be above 0 and at most --to"
            )
        if self.by is SweepBy.CONCURRENCY and not (self.first.is_integer() and self.last.is_integer()):
            raise ConfigError("with --by concurrency, --from and --to must be integers")
        if not 0 < self.attainment <= 1:
            raise ConfigError("--attain must be above 0 and at most 1: it is a fraction of the requests")

    def workload(self, base: Workload, level: float) -> Workload:
        if self.by is SweepBy.CONCURRENCY:
            arrivals: Closed | Steady | Poisson = Closed(int(level))
        elif isinstance(base.arrivals, Steady):
            arrivals = Steady(level)
        else:
            arrivals = Poisson(level)
        count = max(MIN_REQUESTS, math.ceil(level * self.requests_per_level))
        return base.scaled(num_requests=count, arrivals=arrivals)

    def between(self, low: float, high: float) -> float | None:
        """Return the geometric mean; None if there is no level in between."""
        middle = math.sqrt(low * high)
        if self.by is SweepBy.CONCURRENCY:
            middle = float(round(middle))
        return middle if low < middle < high else None


@dataclass(frozen=True)
class SweepPoint:
    level: float
    holds: bool
    summary: Summary
    client: ClientFacts
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class SweepReport:
    octavo: str
    url: str
    model: str
    prompts: str
    workload: WorkloadFacts
    plan: SweepPlan
    slo: Slo
    seed: int
    points: tuple[SweepPoint, ...]  # by level
    knee: float | None  # the highest sustained level; None: no level was sustained
    is_end_of_range: bool  # the highest allowed level was sustained: the knee is beyond it

    @property
    def warnings(self) -> list[str]:
        return [f"at {point.level:.3g}: {warning}" for point in self.points for warning in point.warnings]

    def as_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def of_json(cls, content: bytes) -> "SweepReport":
        return msgspec.json.decode(content, type=cls)


RunLevel = Callable[[Workload, int], LoadReport]


def run_sweep(
    target: LoadTarget,
    workload: Workload,
    plan: SweepPlan,
    seed: int | None = None,
    *,
    slo: Slo | None = None,
    timeout: float = REQUEST_SECONDS,
    watch: Watch | None = None,
    on_point: Callable[[SweepPoint], None] = lambda point: None,
) -> SweepReport:
    """Run a sweep. Level n uses seed + n, so that no level finds the prompts of another in a cache."""
    slo = slo or Slo()
    seed = secrets.randbits(32) if seed is None else seed

    def run(level: Workload, number: int) -> LoadReport:
        return run_load(
            target, level, seed + number, slo=slo, warm_up=number == 0, timeout=timeout, watch=watch
        )

    points = []
    for point in climb(workload, plan, slo, run):
        points.append(point)
        on_point(point)
    points.sort(key=lambda point: point.level)
    knee = max((point.level for point in points if point.holds), default=None)
    return SweepReport(
        octavo=octavo.__version__,
        url=target.url,
        model=target.model,
        prompts=target.style,
        workload=WorkloadFacts.of(workload),
        plan=plan,
        slo=slo,
        seed=seed,
        points=tuple(points),
        knee=knee,
        is_end_of_range=all(point.holds for point in points),
    )


def climb(workload: Workload, plan: SweepPlan, slo: Slo, run: RunLevel) -> Iterator[SweepPoint]:
    """Measure level after level and yield the points in this order."""
    numbers = itertools.count()

    def measure(level: float, best: SweepPoint | None) -> SweepPoint:
        report = run(plan.workload(workload, level), next(numbers))
        holds = _holds(report.summary, level, best, plan, slo)
        return SweepPoint(level, holds, report.summary, report.client, tuple(report.warnings))

    best: SweepPoint | None = None  # the highest sustained level
    level = plan.first
    while (point := measure(level, best)).holds:
        yield point
        best = point
        if level >= plan.last:
            return
        level = min(2 * level, plan.last)
    yield point
    too_high = level  # the lowest level that was not sustained
    for _ in range(plan.num_halvings if best is not None else 0):
        assert best is not None
        middle = plan.between(best.level, too_high)
        if middle is None:
            return
        point = measure(middle, best)
        yield point
        if point.holds:
            best = point
        else:
            too_high = middle


def _holds(summary: Summary, level: float, best: SweepPoint | None, plan: SweepPlan, slo: Slo) -> bool:
    if slo.is_given:
        assert summary.slo_attainment is not None
        return summary.slo_attainment >= plan.attainment
    if summary.num_failed:
        return False
    if best is None:
        return True
    growth = summary.output_tokens_per_second / best.summary.output_tokens_per_second
    return growth >= math.pow(level / best.level, MIN_SLOPE)
