"""`octavo inspect --machine`: what a bug report must say about the place where Octavo runs.

Versions of all that may move the last bit of an answer, and nothing about the person: no paths, no names.
"""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import octavo
from octavo.config import counted, format_size

PACKAGES = ("torch", "llguidance", "tokenizers", "numpy")


def describe_machine() -> dict[str, str]:
    from octavo.capacity import free_memory
    from octavo.kernels.library import usable_cores

    libc = " ".join(platform.libc_ver()).strip() or "no glibc"
    processor = next(_processor_names(), platform.machine())
    return {
        "octavo": octavo.__version__,
        "kernels": _kernels(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()}, {libc}",
        "processor": f"{processor}, {counted(usable_cores(), 'core')} to use",
        "memory": f"{format_size(free_memory())} free",
    }


def _kernels() -> str:
    from octavo.kernels.library import KernelLibrary, find_library

    path = find_library()
    if path is None:
        return "none were built: everything runs on torch"
    try:
        library = KernelLibrary(path)
        return f"native, arithmetic {library.arithmetic}, {library.best_isa.name.lower()} at best"
    except OSError as error:  # built for another system, say: here it is the finding, not a failure
        return f"native, but they cannot be loaded: {error}"


def _version(package: str) -> str:
    """Without importing it: torch takes a second, and may be the very thing that is broken."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor_names() -> Iterator[str]:
    """Linux knows the name that it is sold by; elsewhere the kind must do."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                yield line.partition(":")[2].strip()
