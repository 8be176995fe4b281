"""Check the size of a plain install: `python tools/install_size.py VENV --wheel WHEEL`, run by .ci/run.

Prints packages and bytes in three groups: Octavo, its dependencies, and torch with the dependencies that
only torch needs. Fails if tools/install_size.json does not list an installed package, or if the wheel is
larger than listed there. A change that needs either updates the file.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RATCHET = Path(__file__).with_suffix(".json")
OURS = "octavo"
NOT_COUNTED = {"pip", "setuptools", "wheel"}  # part of every environment


@dataclass(frozen=True)
class Package:
    name: str
    num_bytes: int
    requires: frozenset[str]


def installed(site_packages: Iterable[Path]) -> dict[str, Package]:
    found = distributions(path=[str(path) for path in site_packages])
    packages = (Package(name_of(item), size_of(item), requirements_of(item)) for item in found)
    return {package.name: package for package in packages}


def name_of(distribution: Distribution) -> str:
    return str(canonicalize_name(distribution.metadata["Name"]))


def size_of(distribution: Distribution) -> int:
    """Return the bytes that pip installed, without bytecode, which is generated later."""
    paths = [Path(str(file.locate())) for file in distribution.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def requirements_of(distribution: Distribution) -> frozenset[str]:
    """Return the requirements with all extras; packages that are not installed do not count."""
    extras = ["", *distribution.metadata.get_all("Provides-Extra", [])]
    needed = [Requirement(text) for text in distribution.requires or ()]
    return frozenset(
        str(canonicalize_name(need.name))
        for need in needed
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
    )


def reachable(packages: Mapping[str, Package], start: str, without: str | None = None) -> set[str]:
    """Return `start` and the installed packages that it needs, on dependency paths without `without`."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name in packages and name not in found and name != without:
            found.add(name)
            todo += packages[name].requires
    return found


@dataclass(frozen=True)
class Groups:
    ours: set[str]
    needed: set[str]
    torch: set[str]


def grouped(packages: Mapping[str, Package]) -> Groups:
    every = set(packages) - NOT_COUNTED
    needed = reachable(packages, OURS, without="torch") - {OURS} - NOT_COUNTED
    torch = reachable(packages, "torch") - needed - NOT_COUNTED
    return Groups({OURS}, needed | (every - torch - {OURS}), torch)


@dataclass(frozen=True)
class AllowedSize:
    packages: set[str]
    wheel_kilobytes: int


def allowed() -> AllowedSize:
    listed = json.loads(RATCHET.read_text(encoding="utf-8"))
    return AllowedSize(set(listed["packages"]), listed["wheel_kilobytes"])


def problems(groups: Groups, wheel_kilobytes: float, limits: AllowedSize) -> Iterator[str]:
    for name in sorted(groups.needed - limits.packages):
        yield f"a plain install now includes {name}: avoid it, or list it in {RATCHET.name} if it is worth it"
    if wheel_kilobytes > limits.wheel_kilobytes:
        yield f"the wheel has {wheel_kilobytes:.0f} kB, but {RATCHET.name} allows {limits.wheel_kilobytes} kB"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print and check the size of a plain install.")
    parser.add_argument("venv", type=Path, help="environment with only Octavo installed")
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel that was installed")
    options = parser.parse_args(arguments)
    packages = installed(options.venv.glob("lib/python*/site-packages"))
    groups = grouped(packages)
    for title, names in (("octavo", groups.ours), ("dependencies", groups.needed), ("torch", groups.torch)):
        size = sum(packages[name].num_bytes for name in names)
        print(f"{title:12} {len(names):3} packages {size / 1e6:7.1f} MB")
    wheel_kilobytes = options.wheel.stat().st_size / 1000
    limits = allowed()
    print(f"wheel: {wheel_kilobytes:.0f} kB of {limits.wheel_kilobytes} kB allowed")
    absent = sorted(limits.packages - groups.needed)
    if absent:
        print(f"listed but not installed: {', '.join(absent)}")
    found = list(problems(groups, wheel_kilobytes, limits))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
