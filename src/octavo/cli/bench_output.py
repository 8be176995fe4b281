"""Output that the benchmark commands share: a table that grows while they run, a JSON file and a plot."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import octavo
from octavo.cli.terminal import Terminal, TextStyle
from octavo.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from octavo.bench.measure import NativeMachine
    from octavo.bench.roofline import Point
    from octavo.kernels.library import KernelPool

THROTTLED = "*"
PROBED_BYTES = 768 << 20  # far more than any cache holds


@dataclass(frozen=True)
class Column:
    """A table column. A negative width aligns it to the left."""

    title: str
    width: int

    def show(self, text: str) -> str:
        return text.ljust(-self.width) if self.width < 0 else text.rjust(self.width)


class GrowingTable:
    """Prints rows as they arrive, in columns of fixed width."""

    def __init__(self, terminal: Terminal, columns: Sequence[Column]) -> None:
        self._terminal = terminal
        self._columns = columns
        header = "  ".join(column.show(column.title) for column in columns)
        terminal.write(terminal.styled(header.rstrip(), TextStyle.BOLD, terminal.stdout) + "\n")

    def add(self, cells: Sequence[str]) -> None:
        shown = (column.show(cell) for column, cell in zip(self._columns, cells, strict=True))
        self._terminal.write("  ".join(shown).rstrip() + "\n")


def add_output_flags(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument("--quick", action="store_true", help="run a shorter, less accurate benchmark")
    parser.add_argument("--json", metavar="FILE", type=Path, default=None, help="write all results to FILE")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        default=None,
        help="draw the roofline to FILE, which ends with .svg or .png",
    )


def open_machine(threads: int | None, isa: str, *, quick: bool) -> "tuple[KernelPool, NativeMachine]":
    """Open the kernel thread pool, and the probes of the machine that run on it."""
    from octavo.bench.measure import NativeMachine
    from octavo.kernels.library import find_library
    from octavo.kernels.loading import open_pool

    path = find_library()
    if path is None:
        raise ConfigError(
            "this benchmark needs the native kernel library, which was not built when Octavo was installed:"
            " install a C++ compiler, then reinstall Octavo"
        )
    pool = open_pool(path, "auto" if isa == "torch" else isa, threads)
    return pool, NativeMachine(pool, memory_bytes=PROBED_BYTES, peak_search_seconds=0.2 if quick else 2.0)


def write_json(path: Path, pool: "KernelPool", machine: "NativeMachine", content: Mapping[str, Any]) -> None:
    document = {
        "octavo": octavo.__version__,
        "isa": pool.isa.name.lower(),
        "threads": pool.num_threads,
        "best_peak_gigaflops": machine.best_peak / 1e9,
        **content,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def percent_of_limit(fraction: float, *, is_throttled: bool) -> str:
    return f"{fraction:.0%}{THROTTLED if is_throttled else ''}"


def report_dropped(results: Sequence[Any], terminal: Terminal) -> None:
    dropped, throttled = (
        sum(result.num_dropped for result in results),
        sum(result.is_throttled for result in results),
    )
    total = sum(result.num_turns for result in results)
    terminal.note(f"{total:,} samples; {dropped:,} more were dropped because AMX was throttled during them")
    if throttled:
        terminal.note(
            f"{THROTTLED} AMX was throttled during every sample of these rows, so throttled samples were kept"
        )


def draw_roofline(
    points: "Sequence[Point]", results: Sequence[Any], best_peak: float, path: Path, title: str
) -> None:
    """Plot the points under the median bandwidth measured with `results`, and the highest peak."""
    from octavo.bench.measure import MachineLimits
    from octavo.bench.roofline import plot_roofline

    bandwidth = statistics.median(result.limit_gigabytes_per_second for result in results) * 1e9
    plot_roofline(points, MachineLimits(bandwidth, best_peak), path, title)
