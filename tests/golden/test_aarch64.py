"""ARM, built here by a cross compiler and run by an emulator: the bits are those of the file."""

import shutil
from pathlib import Path

import pytest

from golden.program import Golden, build_library, build_program, problem, run_program

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
LIBRARIES = "/usr/aarch64-linux-gnu"  # where the cross compiler's package has the C and C++ libraries


def test_arm_has_the_golden_bits(golden: Golden, tmp_path: Path) -> None:
    """One test for both instruction sets: to build takes a minute."""
    missing = [tool for tool in (COMPILER, EMULATOR, "cmake") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user-static cmake")
    library = build_library(
        tmp_path,
        "CMAKE_SYSTEM_NAME=Linux",
        "CMAKE_SYSTEM_PROCESSOR=aarch64",
        f"CMAKE_CXX_COMPILER={COMPILER}",
    )
    program = build_program(COMPILER, library, tmp_path)
    for arguments in (["portable"], ["neon"], ["neon", "upset"]):
        found = run_program(program, *arguments, emulator=(EMULATOR, "-L", LIBRARIES))
        assert (trouble := problem(golden.hashes, found.hashes)) is None, trouble
