"""Limit the size of files and functions: `python tools/size_ratchet.py`, run by `make sizes`.

Files have at most 500 lines and functions at most 60, unless tools/size_ratchet.json lists them with their
size. A listed size may only decrease: growing fails, and so does shrinking without lowering the entry.
Example entries, with functions named by path and qualified name:

    {"files": {"src/octavo/a.py": 612}, "functions": {"src/octavo/a.py::Engine.step": 75}}
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("src", "tests", "tools", "benchmarks")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
RATCHET = "tools/size_ratchet.json"


@dataclass(frozen=True)
class Sizes:
    files: dict[str, int]
    functions: dict[str, int]


def measure(root: Path) -> Sizes:
    sizes = Sizes({}, {})
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        sizes.files[name] = len(source.splitlines())
        for function, lines in function_sizes(ast.parse(source, name)):
            # Several functions may have one name (overloads, a property and its setter): keep the largest.
            key = f"{name}::{function}"
            sizes.functions[key] = max(lines, sizes.functions.get(key, 0))
    return sizes


def function_sizes(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield each function and its lines, with decorators; a parent includes its nested functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = prefix + node.name
            if not isinstance(node, ast.ClassDef):
                first = min(line.lineno for line in (node, *node.decorator_list))
                yield name, (node.end_lineno or first) - first + 1
            yield from function_sizes(node, f"{name}.")
        else:
            yield from function_sizes(node, prefix)


def violations(sizes: Mapping[str, int], limit: int, listed: Mapping[str, int]) -> Iterator[str]:
    """Yield what to do about each violation."""
    for name, lines in sizes.items():
        if name in listed:
            continue
        if lines > limit:
            yield f"{name}: {lines} lines, but at most {limit} are allowed. Split it."
    for name, entry in listed.items():
        lines = sizes.get(name, 0)
        if lines > entry:
            yield f"{name}: {lines} lines, but {RATCHET} lists {entry}. It may only shrink: split it."
        elif lines <= limit:
            yield f"{name}: within the limit of {limit}, or removed: delete its entry in {RATCHET}."
        elif lines < entry:
            yield f"{name}: shrank from {entry} to {lines} lines: lower its entry in {RATCHET}."


def read_ratchet(root: Path) -> Sizes:
    path = root / RATCHET
    listed = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Sizes(listed.get("files", {}), listed.get("functions", {}))


def print_largest(title: str, sizes: Mapping[str, int]) -> None:
    print(f"largest {title}:")
    for name, lines in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:5]:
        print(f"  {lines:5d}  {name}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fail if a Python file or function is too large.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root: Path = parser.parse_args(arguments).root
    sizes = measure(root)
    listed = read_ratchet(root)
    found = [
        *violations(sizes.files, MAX_FILE_LINES, listed.files),
        *violations(sizes.functions, MAX_FUNCTION_LINES, listed.functions),
    ]
    print_largest("files", sizes.files)
    print_largest("functions", sizes.functions)
    for text in found:
        print(f"error: {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
