"""ARM, built here by a cross compiler and run by an emulator: the bits are those of the file."""

import shutil
from pathlib import Path

import pytest

from golden.program import Golden, build_library, build_program, problem, run_program

pytestmark = pytest.mark.xdist_group("aarch64")

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
LIBRARIES = "/usr/aarch64-linux-gnu"  # where the cross compiler's package has the C and C++ libraries


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [tool for tool in (COMPILER, EMULATOR, "cmake") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install g++-aarch64-linux-gnu qemu-user-static cmake")
    folder = tmp_path_factory.mktemp("aarch64")
    library = build_library(
        folder,
        "CMAKE_SYSTEM_NAME=Linux",
        "CMAKE_SYSTEM_PROCESSOR=aarch64",
        f"CMAKE_CXX_COMPILER={COMPILER}",
    )
    return build_program(COMPILER, library, folder)


@pytest.mark.parametrize("isa", ["portable", "neon"])
def test_arm_has_the_golden_bits(golden: Golden, arm_program: Path, isa: str) -> None:
    for options in ([], ["upset"]):
        found = run_program(arm_program, isa, *options, emulator=(EMULATOR, "-L", LIBRARIES))
        assert (trouble := problem(golden.hashes, found.hashes)) is None, trouble
