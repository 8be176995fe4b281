"""`octavo inspect --machine`: describe the machine for a bug report.

Lists the versions of everything that may change the last bit of an answer, and no personal data: no paths, no
user or host names.
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
        "processor": f"{processor}, {counted(usable_cores(), 'usable core')}",
        "memory": f"{format_size(free_memory())} free",
    }


def _kernels() -> str:
    from octavo.kernels.library import KernelLibrary, find_library

    path = find_library()
    if path is None:
        return "not built; all operations run on torch"
    try:
        library = KernelLibrary(path)
        return f"native, arithmetic {library.arithmetic}, up to {library.best_isa.name.lower()}"
    except OSError as error:  # for example, built for another system: report it instead of failing
        return f"native, but cannot be loaded: {error}"


def _version(package: str) -> str:
    """Return a package's version without importing it: torch takes a second, and may be what is broken."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor_names() -> Iterator[str]:
    """Yield the product name of each core's processor. Only Linux provides it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                yield line.partition(":")[2].strip()
