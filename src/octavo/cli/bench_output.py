"""What both benchmarks share in the terminal: a table that grows while they run, and a JSON file."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import octavo
from octavo.cli.terminal import Style, Terminal
from octavo.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from octavo.bench.measure import NativeMachine
    from octavo.bench.roofline import Point
    from octavo.kernels.library import Engine

THROTTLED = "*"
PROBED_BYTES = 768 << 20  # far more than any cache holds


@dataclass(frozen=True)
class Column:
    """Negative width: aligned to the left."""

    title: str
    width: int

    def show(self, text: str) -> str:
        return text.ljust(-self.width) if self.width < 0 else text.rjust(self.width)


class GrowingTable:
    """Rows as they come, in columns of a width known before."""

    def __init__(self, terminal: Terminal, columns: Sequence[Column]) -> None:
        self._terminal = terminal
        self._columns = columns
        header = "  ".join(column.show(column.title) for column in columns)
        terminal.write(terminal.styled(header.rstrip(), Style.BOLD, terminal.stdout) + "\n")

    def add(self, cells: Sequence[str]) -> None:
        shown = (column.show(cell) for column, cell in zip(self._columns, cells, strict=True))
        self._terminal.write("  ".join(shown).rstrip() + "\n")


def add_output_flags(parser: "argparse.ArgumentParser") -> None:
    parser.add_argument("--quick", action="store_true", help="a short form: less of everything, less exact")
    parser.add_argument("--json", metavar="FILE", type=Path, default=None, help="write all figures to FILE")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        default=None,
        help="draw the roofline: FILE ends with .svg or .png",
    )


def open_machine(threads: int | None, isa: str, *, quick: bool) -> "tuple[Engine, NativeMachine]":
    """An engine for the kernels and the probes, and the machine seen through it."""
    from octavo.bench.measure import NativeMachine
    from octavo.kernels.library import find_library
    from octavo.kernels.loading import open_engine

    path = find_library()
    if path is None:
        raise ConfigError(
            "no native library was built when Octavo was installed, and the machine is measured with it:"
            " install a C++ compiler and install Octavo again"
        )
    engine = open_engine(path, "auto" if isa == "torch" else isa, threads)
    return engine, NativeMachine(engine, memory_bytes=PROBED_BYTES, look_around=0.2 if quick else 2.0)


def write_json(path: Path, engine: "Engine", machine: "NativeMachine", content: Mapping[str, Any]) -> None:
    whole = {
        "octavo": octavo.__version__,
        "isa": engine.isa.name.lower(),
        "threads": engine.num_threads,
        "best_peak_gigaflops": machine.best_peak / 1e9,
        **content,
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n")


def of_limit(fraction: float, *, is_throttled: bool) -> str:
    return f"{fraction:.0%}{THROTTLED if is_throttled else ''}"


def say_what_was_dropped(results: Sequence[Any], terminal: Terminal) -> None:
    dropped, throttled = (
        sum(result.num_dropped for result in results),
        sum(result.is_throttled for result in results),
    )
    total = sum(result.num_turns for result in results)
    terminal.note(f"{total:,} samples; {dropped:,} more were dropped because AMX was throttled beside them")
    if throttled:
        terminal.note(
            f"{THROTTLED} AMX never ran at full speed beside these: their samples are what there was"
        )


def draw_roofline(
    points: "Sequence[Point]", results: Sequence[Any], best_peak: float, path: Path, title: str
) -> None:
    """Under the bandwidth that was usual beside the results, and the best peak."""
    from octavo.bench.measure import Limits
    from octavo.bench.roofline import plot_roofline

    bandwidth = statistics.median(result.limit_gigabytes_per_second for result in results) * 1e9
    plot_roofline(points, Limits(bandwidth, best_peak), path, title)
