"""Load generator for any OpenAI-compatible server: `octavo bench serve` and `octavo bench sweep`.

Use from Python:

    from octavo.bench.serve import WORKLOADS, find_target, run_load
    report = run_load(find_target("http://127.0.0.1:8000"), WORKLOADS["baseline"])
    print(report.summary.ttft)
"""

from octavo.bench.serve.arrivals import AtOnce, Bursts, Closed, Poisson, Steady
from octavo.bench.serve.lengths import Fixed, LogNormal, LogUniform, Mix
from octavo.bench.serve.load import Progress, load, run_load
from octavo.bench.serve.record import LoadRecord
from octavo.bench.serve.report import LoadReport
from octavo.bench.serve.summary import Distribution, Slo, Summary
from octavo.bench.serve.target import LoadTarget, PromptStyle, find_target
from octavo.bench.serve.workload import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "AtOnce",
    "Bursts",
    "Closed",
    "Distribution",
    "Fixed",
    "LoadRecord",
    "LoadReport",
    "LoadTarget",
    "LogNormal",
    "LogUniform",
    "Mix",
    "Poisson",
    "Progress",
    "PromptStyle",
    "Slo",
    "Steady",
    "Summary",
    "Workload",
    "find_target",
    "load",
    "run_load",
]
