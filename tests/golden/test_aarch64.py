"""The kernels for ARM, built with a cross compiler and run in an emulator, compute the golden vectors."""

import shutil
from pathlib import Path

import pytest

from golden.program import Golden, build_library, build_program, problem, run_program

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
LIBRARIES = "/usr/aarch64-linux-gnu"  # where the cross compiler's package installs the C and C++ libraries


def test_arm_has_the_golden_bits(golden: Golden, tmp_path: Path) -> None:
    """One test for both instruction sets, because the build takes a minute."""
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
    for arguments in (["portable"], ["neon"], ["neon", "nondefault_fp"]):
        found = run_program(program, *arguments, emulator=(EMULATOR, "-L", LIBRARIES))
        assert (message := problem(golden.hashes, found.hashes)) is None, message
