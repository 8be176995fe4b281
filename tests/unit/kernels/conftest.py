"""The native library; tests are skipped if it was not built."""

from collections.abc import Callable

import pytest

from octavo.kernels.library import Isa, KernelLibrary, KernelPool, find_library
from octavo.kernels.loading import load_kernels


@pytest.fixture(scope="session")
def library() -> KernelLibrary:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    return load_kernels(path)


@pytest.fixture(scope="session")
def open_pool(library: KernelLibrary) -> Callable[[Isa, int], KernelPool]:
    """`open_pool(isa, threads)`; skips unavailable instruction sets. Pools are kept for the session."""
    pools: dict[tuple[Isa, int], KernelPool] = {}

    def open_pool(isa: Isa, num_threads: int = 2) -> KernelPool:
        if not library.has_isa(isa):
            pytest.skip(f"this processor has no {isa.name}")
        if (isa, num_threads) not in pools:
            pools[isa, num_threads] = KernelPool(library, num_threads, isa)
        return pools[isa, num_threads]

    return open_pool
