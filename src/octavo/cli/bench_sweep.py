"""`octavo bench sweep`: find the highest load that a server sustains."""

import argparse
from typing import TYPE_CHECKING

from octavo.cli.bench_load import (
    add_report_flags,
    add_slo_flags,
    add_target_flags,
    add_workload_flags,
    bar,
    check_files,
    milliseconds,
    slo_from,
    target_from,
    workload_from,
)
from octavo.cli.bench_output import Column, GrowingTable
from octavo.cli.invocation import Invocation

if TYPE_CHECKING:
    from octavo.bench.serve.sweep import SweepPoint, SweepReport

USAGE = "bench sweep URL"
DESCRIPTION = """\
Increase the load on a server until it saturates, and find the knee: the highest rate (or concurrency) at
which enough requests meet the SLO or, without an SLO, up to which throughput grows with the load. The level
doubles until the server no longer sustains it; then the interval is bisected. docs/benchmarking.md is the
guide.

  octavo bench sweep http://127.0.0.1:8000 --slo-ttft 1s --slo-tpot 100ms --html sweep.html
  octavo bench sweep http://127.0.0.1:8000 --by concurrency --workload continuous_batching"""

COLUMNS = (
    Column("level", 8),
    Column("requests", 8),
    Column("tokens/s", 9),
    Column("requests/s", 10),
    Column("TTFT p50", 9),
    Column("TTFT p99", 9),
    Column("TPOT p50", 9),
    Column("ITL p99", 9),
    Column("met SLO", 8),
    Column("holds", -5),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        help="server address, such as http://127.0.0.1:8000; include the path unless it is /v1",
    )
    group = parser.add_argument_group("load levels")
    group.add_argument(
        "--by",
        choices=["rate", "concurrency"],
        default="rate",
        help="what increases: requests per second, or concurrent requests [rate]",
    )
    group.add_argument("--from", metavar="X", dest="first", type=float, default=1.0, help="first level [1]")
    group.add_argument(
        "--to", metavar="X", dest="last", type=float, default=1024.0, help="highest level [1024]"
    )
    group.add_argument(
        "--per-level",
        metavar="X",
        type=float,
        default=None,
        help="requests per level, as a multiple of the level: seconds at a rate [10], rounds at a"
        " concurrency [4]",
    )
    group.add_argument(
        "--halvings",
        metavar="N",
        type=int,
        default=2,
        help="number of times that the last interval is bisected [2]",
    )
    group.add_argument(
        "--attain",
        metavar="X",
        type=float,
        default=0.9,
        help="fraction of requests that must meet the SLO [0.9]",
    )
    add_target_flags(parser)
    add_workload_flags(parser)
    add_slo_flags(parser)
    add_report_flags(parser)


def run(call: Invocation) -> int:
    from octavo.bench.serve.sweep import SweepBy, SweepPlan, run_sweep

    args = call.args
    check_files(args)
    by = SweepBy(args.by)
    rounds = 10.0 if by is SweepBy.RATE else 4.0
    plan = SweepPlan(by, args.first, args.last, args.per_level or rounds, args.halvings, args.attain)
    workload, slo = workload_from(args), slo_from(args)
    target = target_from(call)
    call.terminal.note(f"{workload.name} by {by} on {target.model} at {target.url}; times in ms")
    rows = GrowingTable(call.terminal, COLUMNS)
    with bar(call.terminal, quiet=args.quiet) as watch:
        report = run_sweep(
            target,
            workload,
            plan,
            args.load_seed,
            slo=slo,
            timeout=args.timeout,
            watch=watch,
            on_point=lambda point: rows.add(_cells(point)),
        )
    call.terminal.write(verdict(report) + "\n")
    for warning in report.warnings:
        call.terminal.warn(warning)
    if args.json is not None:
        args.json.write_bytes(report.as_json())
    if args.html is not None:
        from octavo.bench.serve.sweep_page import sweep_page

        args.html.write_text(sweep_page(report), encoding="utf-8")
    return 0


def verdict(report: "SweepReport") -> str:
    unit = "requests/s" if report.plan.by == "rate" else "concurrent requests"
    if report.knee is None:
        return f"no knee: {report.plan.first:g} {unit} is already too much; lower --from, or relax the SLO"
    if report.is_end_of_range:
        return f"no knee up to {report.knee:g} {unit}: raise --to"
    return f"knee: {report.knee:.3g} {unit}"


def _cells(point: "SweepPoint") -> tuple[str, ...]:
    summary = point.summary
    attainment = summary.slo_attainment
    times = (
        None if summary.ttft is None else summary.ttft.p50,
        None if summary.ttft is None else summary.ttft.p99,
        None if summary.tpot is None else summary.tpot.p50,
        None if summary.itl is None else summary.itl.p99,
    )
    return (
        f"{point.level:.3g}",
        f"{summary.num_requests:,}",
        f"{summary.output_tokens_per_second:,.1f}",
        f"{summary.requests_per_second:,.2f}",
        *("-" if time is None else milliseconds(time) for time in times),
        "-" if attainment is None else f"{attainment:.0%}",
        "yes" if point.holds else "no",
    )
