"""A library built with another compiler computes the same golden vectors."""

import shutil
from pathlib import Path

import pytest

from golden.program import Golden, build_library, build_program, problem, run_program
from octavo.kernels.library import KernelLibrary


def test_clang(golden: Golden, tmp_path: Path, installed_library: Path) -> None:
    """One test for all instruction sets, because the build takes a minute."""
    if shutil.which("clang++") is None or shutil.which("cmake") is None:
        pytest.skip("needs clang++ and cmake: apt-get install clang cmake")
    program = build_program("clang++", build_library(tmp_path, "CMAKE_CXX_COMPILER=clang++"), tmp_path)
    for isa in KernelLibrary(installed_library).isas:
        found = run_program(program, isa.name.lower())
        assert (message := problem(golden.hashes, found.hashes)) is None, message
