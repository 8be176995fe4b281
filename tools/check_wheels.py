"""Check the contents of wheels: `python tools/check_wheels.py [--release] dist`.

Expects exactly one wheel with the native library and one without, of the same version; for a release, one
with the library for each platform. Prints their sizes and the symbol versions that a library needs.
"""

import argparse
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/octavo/"
SOURCES = "octavo/kernels/csrc/"  # needed only to build the library
LIBRARY = "octavo/kernels/liboctavo_kernels.so"
MAC_LIBRARY = "octavo/kernels/liboctavo_kernels.dylib"
PURE_TAG = "py3-none-any"
RELEASED = ("manylinux_x86_64", "manylinux_aarch64", "macosx_x86_64", "macosx_arm64")


def expected_files(root: Path) -> set[str]:
    """Return the package files that git tracks, by their names in a wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", PACKAGE], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    names = {name.removeprefix("src/") for name in listed.split("\0") if name}
    return {name for name in names if not name.startswith(SOURCES)}


def is_pure(wheel: Path) -> bool:
    return wheel.name.endswith(f"-{PURE_TAG}.whl")


def library_of(wheel: Path) -> str:
    return MAC_LIBRARY if "-macosx_" in wheel.name else LIBRARY


def platform_of(wheel: Path) -> str:
    """Return the platform without system versions, such as "manylinux_x86_64" or "any"."""
    return re.sub(r"_\d+_\d+_", "_", wheel.stem.split("-")[-1].split(".")[-1])


def wrong_wheels(wheels: Sequence[Path], is_release: bool) -> Iterator[str]:
    """Yield what is wrong with the set of wheels."""
    platforms = sorted(platform_of(wheel) for wheel in wheels)
    names = [wheel.name for wheel in wheels]
    if is_release and platforms != sorted((*RELEASED, "any")):
        yield f"a release needs one wheel for each of {', '.join(RELEASED)} and a pure one, but has {names}"
    if not is_release and (platforms.count("any") != 1 or len(wheels) != 2):
        yield f"expected one native and one pure wheel, found {names}"
    if len({wheel.name.split("-")[1] for wheel in wheels}) > 1:
        yield "the wheels have different versions"


def problems(wheel: Path, expected: set[str]) -> Iterator[str]:
    """Yield what is wrong with one wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
        metadata = [archive.read(name).decode() for name in info if name.endswith(".dist-info/WHEEL")]
    required = expected if is_pure(wheel) else expected | {library_of(wheel)}
    yield from (f"lacks {name}" for name in sorted(required - names))
    yield from (f"contains unexpected {name}" for name in sorted(names - info - required))
    for notice in ("LICENSE", "THIRD_PARTY_LICENSES"):
        if not any(name.endswith(f"/licenses/{notice}") for name in info):
            yield f"has no {notice}"
    if not re.match(r"[\w.+]+-[\w.+]+-py3-none-", wheel.name):
        yield "is for a single Python version, not py3-none"
    if [f"Root-Is-Purelib: {str(is_pure(wheel)).lower()}" in text for text in metadata] != [True]:
        yield "has a wrong or missing Root-Is-Purelib in its metadata"


def needs(library: bytes) -> dict[str, str]:
    """Return the newest symbol version of each kind that the library requires, such as GLIBC 2.29."""
    newest: dict[str, tuple[int, ...]] = {}
    for kind, number in re.findall(rb"\0(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)(?=\0)", library):
        version = tuple(map(int, number.split(b".")))
        newest[kind.decode()] = max(version, newest.get(kind.decode(), ()))
    return {kind: ".".join(map(str, version)) for kind, version in sorted(newest.items())}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the wheels in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release", action="store_true", help="expect the wheels of all platforms")
    options = parser.parse_args(arguments)
    wheels = sorted(options.folder.glob("*.whl"))
    found = list(wrong_wheels(wheels, options.release))
    expected = expected_files(ROOT)
    for wheel in wheels:
        found += [f"{wheel.name} {problem}" for problem in problems(wheel, expected)]
        print(f"{wheel.name}: {wheel.stat().st_size / 1000:.0f} kB")
        if not is_pure(wheel):
            with zipfile.ZipFile(wheel) as archive:
                name = library_of(wheel)
                library = archive.read(name) if name in archive.namelist() else b""
            print(f"  library: {len(library) / 1000:.0f} kB, needs {needs(library)}")
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
