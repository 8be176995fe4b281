"""`octavo bench serve`: measure what the clients of a server see under load."""

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
from octavo.cli.terminal import Terminal, table
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.serve import LoadReport, Summary

USAGE = "bench serve URL"
DESCRIPTION = """\
Send a workload to any OpenAI-compatible server and measure what its clients see: time to first token (TTFT),
time between tokens (ITL), time per output token (TPOT), time for whole answers (E2E), throughput, and goodput
under an SLO. Every run uses new prompts, so that no server has them in its cache. docs/benchmarking.md is the
guide. The exit code is 1 if a request failed.

  octavo bench serve http://127.0.0.1:8000 --workload baseline
  octavo bench serve http://127.0.0.1:8000 --arrivals poisson:4 --slo-ttft 500ms --html report.html
  octavo bench serve --ceiling"""

EXIT_FAILED = 1
# Concurrency, tokens per answer, number of requests.
CEILINGS = ((1, 128, 200), (64, 128, 600), (256, 128, 600), (64, 1, 3000))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="server address, such as http://127.0.0.1:8000; include the path unless it is /v1",
    )
    parser.add_argument(
        "--ceiling",
        action="store_true",
        help="measure this client instead, against a server that computes nothing",
    )
    add_target_flags(parser)
    add_workload_flags(parser)
    parser.add_argument(
        "--requests", metavar="N", type=int, default=None, help="number of requests [set by the workload]"
    )
    parser.add_argument(
        "--arrivals",
        metavar="HOW",
        default=None,
        help="when requests start: poisson:RATE, steady:RATE, bursts:SIZExSECONDS, once or closed:CONCURRENCY"
        " [set by the workload]",
    )
    add_slo_flags(parser)
    add_report_flags(parser)


def run(call: Invocation) -> int:
    from octavo.bench.serve import run_load
    from octavo.bench.serve.arrivals import parse_arrivals

    args = call.args
    if args.ceiling:
        return _show_ceiling(call.terminal)
    if args.url is None:
        raise ConfigError("no URL: name the server, as in 'octavo bench serve http://127.0.0.1:8000'")
    if args.requests is not None and args.requests < 1:
        raise ConfigError("--requests must be a whole number of at least 1")
    check_files(args)
    workload = workload_from(args).scaled(
        num_requests=args.requests, arrivals=None if args.arrivals is None else parse_arrivals(args.arrivals)
    )
    slo = slo_from(args)
    target = target_from(call)
    call.terminal.note(
        f"{workload.name}: {workload.num_requests} requests to {target.model} at {target.url}"
        f" ({workload.arrivals}; prompts {workload.prompt}, answers {workload.output} tokens)"
    )
    with bar(call.terminal, quiet=args.quiet) as watch:
        report = run_load(target, workload, args.load_seed, slo=slo, timeout=args.timeout, watch=watch)
    show_report(call.terminal, report)
    if args.json is not None:
        args.json.write_bytes(report.as_json())
    if args.html is not None:
        from octavo.bench.serve.load_page import load_page

        args.html.write_text(load_page(report), encoding="utf-8")
    return EXIT_FAILED if report.summary.num_failed else 0


def show_report(terminal: Terminal, report: "LoadReport") -> None:
    summary = report.summary
    columns = (Column("ms", -6), *(Column(name, 10) for name in ("mean", "p50", "p90", "p95", "p99", "max")))
    latencies = GrowingTable(terminal, columns)
    for name, quantiles in (
        ("TTFT", summary.ttft),
        ("ITL", summary.itl),
        ("TPOT", summary.tpot),
        ("E2E", summary.e2e),
    ):
        if quantiles is not None:
            values = (
                quantiles.mean,
                quantiles.p50,
                quantiles.p90,
                quantiles.p95,
                quantiles.p99,
                quantiles.max,
            )
            latencies.add((name, *map(milliseconds, values)))
    terminal.write("\n" + table(_figures(summary)) + "\n")
    terminal.note(
        f"seed {report.seed}; this client used {report.client.cpu_fraction:.0%} of a core and sent requests"
        f" {milliseconds(report.client.late_p99)} ms late (p99)"
    )
    for warning in report.warnings:
        terminal.warn(warning)


def _figures(summary: "Summary") -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            "requests",
            f"{summary.num_requests - summary.num_failed:,} succeeded, {summary.num_failed:,} failed",
        ),
        ("seconds", f"{summary.seconds:,.2f}"),
        ("output tokens/s", f"{summary.output_tokens_per_second:,.1f}"),
        ("total tokens/s", f"{summary.total_tokens_per_second:,.1f}"),
        ("requests/s", f"{summary.requests_per_second:,.2f}"),
    ]
    if summary.cache_hit_rate is not None:
        rows.append(("prompt tokens cached", f"{summary.cache_hit_rate:.1%}"))
    if summary.acceptance is not None:
        text = f"{summary.acceptance:.1%} of {summary.drafted_tokens:,}"
        rows.append(("drafted tokens accepted", text))
    if summary.goodput is not None and summary.slo_attainment is not None:
        text = f"{summary.goodput:,.2f} requests/s ({summary.slo_attainment:.1%} of requests met the SLO)"
        rows.append(("goodput", text))
    return rows


def _show_ceiling(terminal: Terminal) -> int:
    from octavo.bench.serve.ceiling import measure_ceiling

    terminal.note(
        "this client against a server that computes nothing; a core-second is one second of CPU time"
    )
    columns = (
        Column("concurrency", 11),
        Column("tokens", 7),
        Column("tokens/s", 12),
        Column("tokens/core-second", 19),
        Column("requests/core-second", 21),
    )
    rows = GrowingTable(terminal, columns)
    for concurrency, tokens, requests in CEILINGS:
        ceiling = measure_ceiling(concurrency, tokens, requests)
        rates = (ceiling.chunks_per_second, ceiling.chunks_per_core_second, ceiling.requests_per_core_second)
        rows.add((str(concurrency), str(tokens), *(f"{rate:,.0f}" for rate in rates)))
    return 0
