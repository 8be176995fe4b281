"""`octavo bench kernels`: compare each native kernel with the machine's limits and torch."""

import argparse
from typing import TYPE_CHECKING

from octavo.cli.bench_output import (
    Column,
    GrowingTable,
    add_output_flags,
    draw_roofline,
    open_machine,
    percent_of_limit,
    report_dropped,
    write_json,
)
from octavo.cli.flags import add_option_flags
from octavo.cli.invocation import Invocation
from octavo.errors import ConfigError
from octavo.weight_format import FORMATS

if TYPE_CHECKING:
    from octavo.bench.kernels import KernelResult

USAGE = "bench kernels"
DESCRIPTION = """\
Benchmark each native kernel on shapes from real models. Samples alternate with probes of the machine's limits
(memory bandwidth, AMX peak) and with torch's own kernel. docs/benchmarks.md explains the table. Of the engine
options, only --threads and --kernels have an effect."""

COLUMNS = (
    Column("kernel", -38),
    Column("rows", 5),
    Column("us", 9),
    Column("GB/s", 7),
    Column("GF/s", 7),
    Column("limit", 12),
    Column("reached", 8),
    Column("torch us", 9),
    Column("x torch", 7),
)
# Kinds of kernel in the plot. Row operations read recently written data from the cache, so the memory
# bandwidth does not bound them.
PLOTTED_KINDS = ("gemm", "attention")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", metavar="TEXT", default="", help="run only kernels whose names contain all of these words"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        nargs="+",
        default=["BF16"],
        help="weight formats of matrix products: BF16, or quantised formats such as Q4_K [BF16]",
    )
    add_output_flags(parser)
    add_option_flags(parser)


def run(call: Invocation) -> int:
    args, terminal, options = call.args, call.terminal, call.options
    from octavo.bench.kernels import QUICK, Scale, families, measure_families
    from octavo.bench.roofline import check_plot

    if args.plot is not None:
        check_plot(args.plot)
    if unknown := [name for name in args.format if name != "BF16" and name not in FORMATS]:
        raise ConfigError(
            f"--format {', '.join(unknown)}: unknown weight format; choose from BF16, {', '.join(FORMATS)}"
        )
    words = args.filter.split()
    available = families(args.format)
    chosen = [family for family in available if all(word in family.name for word in words)]
    if not chosen:
        names = "\n  ".join(family.name for family in available)
        raise ConfigError(f"--filter {args.filter!r} matches no kernel; choose from\n  {names}")
    if args.plot is not None and not any(family.kind in PLOTTED_KINDS for family in chosen):
        raise ConfigError("--plot draws matrix products and attention, but --filter excludes all of them")
    pool, machine = open_machine(options.threads, options.kernels, quick=args.quick)
    if unsupported := [name for name in args.format if not pool.library.has_format(name)]:
        raise ConfigError(f"--format {', '.join(unsupported)}: the native kernels do not support this format")
    terminal.note(f"{pool.isa.name.lower()}, {pool.num_threads} threads; us: microseconds in the kernel")
    table = GrowingTable(terminal, COLUMNS)
    results = []
    for result in measure_families(chosen, pool, machine, QUICK if args.quick else Scale()):
        results.append(result)
        table.add(_cells(result))
    report_dropped(results, terminal)
    if args.json is not None:
        write_json(args.json, pool, machine, {"results": results})
    if args.plot is not None:
        _plot(results, args, machine.best_peak)
    return 0


def _cells(result: "KernelResult") -> tuple[str, ...]:
    limit = (
        f"{result.limit_gigabytes_per_second:.1f} GB/s"
        if result.bound == "memory"
        else f"{result.limit_gigaflops:,.0f} GF/s"
    )
    return (
        result.name,
        str(result.num_rows),
        f"{result.seconds * 1e6:,.1f}",
        f"{result.gigabytes_per_second:.1f}",
        f"{result.gigaflops:,.0f}" if result.kind in PLOTTED_KINDS else "-",
        limit,
        percent_of_limit(result.fraction, is_throttled=result.is_throttled),
        f"{result.torch_seconds * 1e6:,.1f}",
        f"{result.speedup:.2f}",
    )


def _plot(results: "list[KernelResult]", args: argparse.Namespace, best_peak: float) -> None:
    from octavo.bench.roofline import Point

    points = [
        Point(result.name, str(result.num_rows), result.intensity, result.gigaflops)
        for result in results
        if result.kind in PLOTTED_KINDS
    ]
    draw_roofline(points, results, best_peak, args.plot, "Kernel roofline (labels: rows)")
