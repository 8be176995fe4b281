"""Find import cycles: `python tools/import_cycles.py`, run by `make cycles`.

Imports for type checkers and imports inside functions count as well: they hide a cycle from Python, but
neither module can be understood without the other.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import grimp

ADVICE = "Move the shared part to a module that imports neither, or pass it as an argument."


def imports_of(package: str) -> dict[str, list[str]]:
    """Return the imports of each module within the package."""
    graph = grimp.build_graph(package, cache_dir=None)
    return {name: sorted(graph.find_modules_directly_imported_by(name)) for name in sorted(graph.modules)}


def cycles(imports: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield cycles without common imports until none is left; each starts and ends with the same module."""
    left = {name: list(imported) for name, imported in imports.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1][::-1]  # in the error, each module is imported by the next
        else:
            return
        yield cycle
        for importer, imported in pairwise(cycle):
            left[importer].remove(imported)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fail if the modules of a package have import cycles.")
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parent.parent / "src")
    parser.add_argument("--package", default="octavo")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(options.source))  # grimp searches for the package here
    imports = imports_of(options.package)
    found = list(cycles(imports))
    for cycle in found:
        print(f"error: import cycle: {' -> '.join(cycle)}. {ADVICE}", file=sys.stderr)
    if not found:
        print(f"no import cycles among {len(imports)} modules")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
