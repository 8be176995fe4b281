"""A report warns of conditions that make its figures unreliable."""

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
        (replace(QUIET, cpu_fraction=0.85), ["the client used 85% of a core and may be the bottleneck"]),
        (replace(QUIET, late_p99=0.02), ["1 % of the requests were sent at least 20 ms late"]),
    ],
)
def test_a_bottleneck_in_the_client_causes_a_warning(client: ClientFacts, warnings: list[str]) -> None:
    facts = WorkloadFacts.of(WORKLOADS["baseline"])
    report = LoadReport("0", 0.0, "u", "m", "ids", facts, 0, Slo(), client, summarise([], Slo()), ())
    assert [
        warning[: len(start)] for warning, start in zip(report.warnings, warnings, strict=True)
    ] == warnings
