"""The native library, or a skip where none was built."""

from collections.abc import Callable

import pytest

from octavo.kernels.library import Engine, Isa, KernelLibrary, find_library
from octavo.kernels.loading import load_kernels


@pytest.fixture(scope="session")
def library() -> KernelLibrary:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    return load_kernels(path)


@pytest.fixture(scope="session")
def open_engine(library: KernelLibrary) -> Callable[[Isa, int], Engine]:
    """`open_engine(isa, threads)`; skips what this processor cannot do. Engines are kept for the session."""
    engines: dict[tuple[Isa, int], Engine] = {}

    def open_engine(isa: Isa, num_threads: int = 2) -> Engine:
        if not library.has_isa(isa):
            pytest.skip(f"this processor has no {isa.name}")
        if (isa, num_threads) not in engines:
            engines[isa, num_threads] = Engine(library, num_threads, isa)
        return engines[isa, num_threads]

    return open_engine
