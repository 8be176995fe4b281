"""`octavo bench kernels`: each native kernel against the machine's limits and torch."""

import argparse
from typing import TYPE_CHECKING

from octavo.cli.bench_output import (
    Column,
    GrowingTable,
    add_output_flags,
    draw_roofline,
    of_limit,
    open_machine,
    say_what_was_dropped,
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
Time each native kernel on the shapes of real models. The machine's limits (memory bandwidth, AMX peak) are
probed beside every sample, and torch's own kernel runs in between. docs/benchmarks.md tells how to read the
table. Of the engine's options, --threads and --kernels count here."""

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
# In the picture. Row operations read what was just written, from the cache: memory is no roof for them.
DRAWN = ("gemm", "attention")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", metavar="TEXT", default="", help="only the kernels with all these words in their names"
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        nargs="+",
        default=["BF16"],
        help="forms of the weights in products: BF16, or quantised ones such as Q4_K",
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
            f"--format {', '.join(unknown)}: there is no such form; known are BF16, {', '.join(FORMATS)}"
        )
    words = args.filter.split()
    every = families(args.format)
    chosen = [family for family in every if all(word in family.name for word in words)]
    if not chosen:
        names = "\n  ".join(family.name for family in every)
        raise ConfigError(f"--filter {args.filter!r} leaves no kernel; there are\n  {names}")
    if args.plot is not None and not any(family.kind in DRAWN for family in chosen):
        raise ConfigError("--plot: products and attention can be drawn, and --filter left none of them")
    engine, machine = open_machine(options.threads, options.kernels, quick=args.quick)
    if lacking := [name for name in args.format if not engine.library.has_format(name)]:
        raise ConfigError(f"--format {', '.join(lacking)}: the kernels cannot compute with it")
    terminal.note(f"{engine.isa.name.lower()}, {engine.num_threads} threads; us is the time in the kernel")
    table = GrowingTable(terminal, COLUMNS)
    results = []
    for result in measure_families(chosen, engine, machine, QUICK if args.quick else Scale()):
        results.append(result)
        table.add(_cells(result))
    say_what_was_dropped(results, terminal)
    if args.json is not None:
        write_json(args.json, engine, machine, {"results": results})
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
        f"{result.gigaflops:,.0f}" if result.kind in DRAWN else "-",
        limit,
        of_limit(result.fraction, is_throttled=result.is_throttled),
        f"{result.torch_seconds * 1e6:,.1f}",
        f"{result.speedup:.2f}",
    )


def _plot(results: "list[KernelResult]", args: argparse.Namespace, best_peak: float) -> None:
    from octavo.bench.roofline import Point

    points = [
        Point(result.name, str(result.num_rows), result.intensity, result.gigaflops)
        for result in results
        if result.kind in DRAWN
    ]
    draw_roofline(points, results, best_peak, args.plot, "Kernels under the roofline (labels: rows)")
