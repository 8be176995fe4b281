"""A report says what a reader must know before believing it."""

from dataclasses import replace

import pytest

from octavo.bench.serve import WORKLOADS, LoadReport, Slo
from octavo.bench.serve.report import ClientFacts, WorkloadFacts
from octavo.bench.serve.summary import summarise

QUIET = ClientFacts(cpu_fraction=0.1, late_p99=0.001, late_max=0.5)


@pytest.mark.parametrize(
    ("client", "warnings"),
    [
        (QUIET, []),
        (replace(QUIET, cpu_fraction=0.85), ["the client used 85% of a core: it may be what was slow"]),
        (replace(QUIET, late_p99=0.02), ["1 % of the requests were sent 20 ms or more after they were due"]),
    ],
)
def test_a_client_that_was_the_bottleneck_is_said(client: ClientFacts, warnings: list[str]) -> None:
    facts = WorkloadFacts.of(WORKLOADS["baseline"])
    report = LoadReport("0", 0.0, "u", "m", "ids", facts, 0, Slo(), client, summarise([], Slo()), ())
    assert [
        warning[: len(start)] for warning, start in zip(report.warnings, warnings, strict=True)
    ] == warnings
