"""Check that the installed Octavo has its native library, and that the library loads and computes.

`[tool.cibuildwheel]` runs this on every wheel. It requires msgspec, but not torch.
"""

import sys

from octavo.kernels.library import KernelLibrary, KernelPool, Memory, find_library


def main() -> int:
    path = find_library()
    if path is None:
        print("error: this installation has no native library", file=sys.stderr)
        return 1
    library = KernelLibrary(path)
    memory = Memory(library, 1 << 20)
    bandwidth = KernelPool(library, 2, library.best_isa).probe_read(memory, 0, memory.num_bytes)
    print(f"{path.name}: {library.best_isa.name.lower()}, read bandwidth {bandwidth / 1e9:.1f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
