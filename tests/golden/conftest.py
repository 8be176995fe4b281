"""Fixtures: the program that computes the golden vectors, built once per test process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from golden.program import Golden, NoSuchIsa, Run, build_program, compiler, read_golden, run_program
from octavo.kernels.library import find_library


@pytest.fixture(scope="session")
def golden() -> Golden:
    return read_golden()


@pytest.fixture(scope="session")
def installed_library() -> Path:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    return path.resolve()


@pytest.fixture(scope="session")
def program(installed_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = compiler()
    if command is None:
        pytest.skip("no C++ compiler: install one, or set CXX")
    return build_program(command, installed_library, tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def run() -> Callable[..., Run]:
    """Return `run(program, isa, *options)`, which skips the test if this processor lacks the ISA."""

    def run_or_skip(program: Path, isa: str, *options: str) -> Run:
        try:
            return run_program(program, isa, *options)
        except NoSuchIsa as error:
            pytest.skip(str(error))

    return run_or_skip
