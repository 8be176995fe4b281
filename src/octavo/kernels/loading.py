"""Load the native library with the functions of every kernel, and open a kernel thread pool."""

from pathlib import Path

from octavo.errors import ConfigError
from octavo.kernels import attention, gemm, prefix_index, rows, sampling, tape
from octavo.kernels.library import Isa, KernelLibrary, KernelPool, usable_cores


def load_kernels(path: Path) -> KernelLibrary:
    library = KernelLibrary(path)
    for kernel in (gemm, attention, rows, sampling, tape, prefix_index):
        library.declare(kernel.PROTOTYPES)
    return library


def open_pool(path: Path, kernels: str, threads: int | None) -> KernelPool:
    """Load the library at `path` and open a kernel thread pool.

    `kernels`: the name of an instruction set, or "auto" for the best available. `threads` None: one per
    usable core.
    """
    library = load_kernels(path)
    isa = library.best_isa if kernels == "auto" else Isa[kernels.upper()]
    if not library.has_isa(isa):
        raise ConfigError(
            f"this processor does not support {kernels}; "
            f"use --kernels {library.best_isa.name.lower()} or auto"
        )
    return KernelPool(library, threads or usable_cores(), isa)
