"""Another compiler makes other instructions of the same sources, and no other bit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from golden.program import ISAS, Golden, Run, build_library, build_program, problem

pytestmark = pytest.mark.xdist_group("clang")


@pytest.fixture(scope="module")
def clang_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("clang++") is None or shutil.which("cmake") is None:
        pytest.skip("needs clang++ and cmake: apt-get install clang cmake")
    folder = tmp_path_factory.mktemp("clang")
    library = build_library(folder, "CMAKE_CXX_COMPILER=clang++")
    return build_program("clang++", library, folder)


@pytest.mark.parametrize("isa", ISAS)
def test_clang(golden: Golden, clang_program: Path, run: Callable[..., Run], isa: str) -> None:
    assert (trouble := problem(golden.hashes, run(clang_program, isa).hashes)) is None, trouble
