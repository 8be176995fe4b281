"""The native library with the functions of every kernel declared."""

from pathlib import Path

from octavo.kernels import attention, gemm, rows, sampling, tape
from octavo.kernels.library import KernelLibrary


def load_kernels(path: Path) -> KernelLibrary:
    library = KernelLibrary(path)
    for kernel in (gemm, attention, rows, sampling, tape):
        library.declare(kernel.PROTOTYPES)
    return library
