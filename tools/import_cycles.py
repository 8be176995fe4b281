"""Find modules that import each other in a circle: `python tools/import_cycles.py`, run by `make cycles`.

Imports for type checkers only and imports inside functions count too: they hide a cycle from Python, but
neither module can be understood without the other.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import grimp

ADVICE = "Move what they share to a module that imports neither, or hand it over as an argument."


def imports_of(package: str) -> dict[str, list[str]]:
    """What each module imports, of the package's own modules."""
    graph = grimp.build_graph(package, cache_dir=None)
    return {name: sorted(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}


def cycles(imports: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Cycles that have no import in common, until there is none left; each from a module back to itself."""
    left = {name: list(imported) for name, imported in imports.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1][::-1]  # there, each module is imported by the next
        else:
            return
        yield cycle
        for importer, imported in pairwise(cycle):
            left[importer].remove(imported)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Fail if modules of a package import each other in a circle."
    )
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent / "src")
    parser.add_argument("--package", default="octavo")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(options.source))  # where grimp looks for the package
    imports = imports_of(options.package)
    found = list(cycles(imports))
    for cycle in found:
        print(f"error: import cycle: {' -> '.join(cycle)}. {ADVICE}", file=sys.stderr)
    if not found:
        print(f"no import cycles among {len(imports)} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
