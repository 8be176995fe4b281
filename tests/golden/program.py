"""Golden vectors of the kernels: build and run golden_vectors.cpp, and compare its hashes with the file."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from patience import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src/octavo/kernels/csrc"
PROGRAM = ROOT / "tests/golden/golden_vectors.cpp"
FILE = ROOT / "tests/golden/golden_vectors.json"
LIBRARY = "liboctavo_kernels.so"

# All names, not only those that this processor has, so that test ids are the same on every machine.
ISAS = ("portable", "avx2", "avx512", "amx", "neon")
NO_SUCH_ISA = 3  # the program's exit code

WHAT_TO_DO = (
    "if that is intended, raise OV_ARITHMETIC, run tools/golden_vectors.py --write"
    " and add a row to docs/law.md"
)


class Golden(msgspec.Struct, frozen=True):
    """The contents of the file: the arithmetic version, and hashes by case."""

    arithmetic: int
    hashes: Mapping[str, str]  # of the kernels: the output of the program
    engine: Mapping[str, str]  # of complete answers: see engine_vectors.py

    def write(self) -> None:
        FILE.write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n")


def read_golden() -> Golden:
    return msgspec.json.decode(FILE.read_bytes(), type=Golden)


@dataclass(frozen=True)
class Run:
    arithmetic: int
    hashes: Mapping[str, str]


class NoSuchIsa(Exception):
    """This processor does not have the instruction set."""


def compiler() -> str | None:
    """Return the path of the C++ compiler: `CXX`, or c++."""
    return shutil.which(os.environ.get("CXX", "c++"))


def build_library(folder: Path, *definitions: str) -> Path:
    """Build the kernel library with CMake and `-D` definitions, for another compiler or processor."""
    arguments = [f"-D{definition}" for definition in definitions]
    _run(["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", *arguments])
    _run(["cmake", "--build", str(folder), "-j", "2"])
    return folder / LIBRARY


def build_program(command: str, library: Path, folder: Path) -> Path:
    program = folder / "golden_vectors"
    includes = ["-I", str(SOURCES), "-I", str(PROGRAM.parent)]
    linked = [str(library), f"-Wl,-rpath,{library.parent}"]
    _run([command, "-std=c++20", "-O2", *includes, str(PROGRAM), "-o", str(program), *linked])
    return program


def run_program(program: Path, isa: str, *options: str, emulator: Sequence[str] = ()) -> Run:
    done = subprocess.run(
        [*emulator, str(program), isa, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    if done.returncode == NO_SUCH_ISA:
        raise NoSuchIsa(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"golden_vectors {isa} exited with {done.returncode}: {done.stderr.strip()}")
    found = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    return Run(int(found.pop("arithmetic")), found)


def changed(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the cases that are in both, with different hashes."""
    return [name for name in expected if name in found and expected[name] != found[name]]


def problem(expected: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return a message if the hashes differ from those of the file, otherwise None."""
    if cases := changed(expected, found):
        names = ", ".join(cases[:12]) + (f" and {len(cases) - 12} more" if len(cases) > 12 else "")
        return f"bits changed without a new arithmetic version: {names}; {WHAT_TO_DO}"
    if expected.keys() != found.keys():
        names = ", ".join(sorted(expected.keys() ^ found.keys()))
        return f"the cases are not those of the file ({names}): run tools/golden_vectors.py --write"
    return None


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
