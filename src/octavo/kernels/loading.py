"""The native library with the functions of every kernel declared, and an engine on it."""

from pathlib import Path

from octavo.errors import ConfigError
from octavo.kernels import attention, gemm, rows, sampling, tape
from octavo.kernels.library import Engine, Isa, KernelLibrary, usable_cores


def load_kernels(path: Path) -> KernelLibrary:
    library = KernelLibrary(path)
    for kernel in (gemm, attention, rows, sampling, tape):
        library.declare(kernel.PROTOTYPES)
    return library


def open_engine(path: Path, kernels: str, threads: int | None) -> Engine:
    """`kernels`: the name of an instruction set, or "auto" for the best there is.

    `threads` None: one for each core that this process may use.
    """
    library = load_kernels(path)
    isa = library.best_isa if kernels == "auto" else Isa[kernels.upper()]
    if not library.has_isa(isa):
        raise ConfigError(f"this processor has no {kernels}; its best is {library.best_isa.name.lower()}")
    return Engine(library, threads or usable_cores(), isa)
