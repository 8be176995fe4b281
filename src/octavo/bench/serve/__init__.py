"""Load for any server with OpenAI's API: `octavo bench serve` and `octavo bench sweep`.

From a program:

    from octavo.bench.serve import WORKLOADS, find_target, run_load
    report = run_load(find_target("http://127.0.0.1:8000"), WORKLOADS["baseline"])
    print(report.summary.ttft)
"""

from octavo.bench.serve.arrivals import AtOnce, Bursts, Closed, Poisson, Steady
from octavo.bench.serve.lengths import Fixed, LogNormal, LogUniform, Mix
from octavo.bench.serve.load import Progress, load, run_load
from octavo.bench.serve.record import RequestRecord
from octavo.bench.serve.report import LoadReport
from octavo.bench.serve.summary import Distribution, Slo, Summary
from octavo.bench.serve.target import PromptStyle, Target, find_target
from octavo.bench.serve.workload import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "AtOnce",
    "Bursts",
    "Closed",
    "Distribution",
    "Fixed",
    "LoadReport",
    "LogNormal",
    "LogUniform",
    "Mix",
    "Poisson",
    "Progress",
    "PromptStyle",
    "RequestRecord",
    "Slo",
    "Steady",
    "Summary",
    "Target",
    "Workload",
    "find_target",
    "load",
    "run_load",
]
