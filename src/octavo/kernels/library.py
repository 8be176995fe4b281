"""The native library: found, loaded, and asked what this processor can do.

Nothing here needs torch. A tensor crosses the border as a pointer; the modules beside this one check it.
"""

import ctypes
import enum
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import kernels
from octavo.kernels.arguments import KernelArguments, Pointer
from octavo.protocol import KernelTime, KernelTimes

FILE_NAME = "liboctavo_kernels.dylib" if sys.platform == "darwin" else "liboctavo_kernels.so"

LIBRARY_VARIABLE = "OCTAVO_KERNEL_LIBRARY"
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Isa(enum.IntEnum):
    """Instruction sets, as in octavo_kernels.h. They differ in speed; a result depends on none of them.

    `KernelLibrary.has_isa` says which of them this processor has: no order does.
    """

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3
    NEON = 4


class Format(enum.IntEnum):
    """`ov_format`: how a weight is stored. `KernelLibrary.has_format` says for which there are kernels."""

    BF16 = 0
    F32 = 1
    Q4_K = 2
    Q5_K = 3
    Q6_K = 4
    Q8_0 = 5
    Q4_0 = 6
    Q4_1 = 7
    Q5_0 = 8
    Q5_1 = 9
    Q2_K = 10
    Q3_K = 11
    IQ4_NL = 12
    IQ4_XS = 13
    MXFP4 = 14
    INT4_32 = 15
    INT4_128 = 16
    INT8_32 = 17
    INT8_128 = 18
    FP8_32 = 19
    FP8_128 = 20


@dataclass(frozen=True)
class RecordedCall:
    arguments: KernelArguments
    memory: tuple[object, ...]  # kept alive, so that no two addresses of a recording are the same


class TimeStruct(ctypes.Structure):
    """`ov_time` of octavo_kernels.h"""

    _fields_ = (("nanoseconds", ctypes.c_uint64), ("calls", ctypes.c_uint64))


class TimesStruct(ctypes.Structure):
    """`ov_times`: a field for each kind of kernel, with the names of `KernelTimes`."""

    _fields_ = tuple((kind, TimeStruct) for kind in KernelTimes.__struct_fields__)


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_status_text": (ctypes.c_char_p, (ctypes.c_int,)),
    "ov_arithmetic": (ctypes.c_int32, ()),
    "ov_has_isa": (ctypes.c_int, (ctypes.c_int32,)),
    "ov_best_isa": (ctypes.c_int, ()),
    "ov_has_format": (ctypes.c_int, (ctypes.c_int32,)),
    "ov_engine_open": (ctypes.c_int, (ctypes.c_int32, ctypes.c_int, ctypes.POINTER(Pointer))),
    "ov_engine_close": (None, (Pointer,)),
    "ov_engine_times": (ctypes.c_int, (Pointer, ctypes.POINTER(TimesStruct))),
    "ov_alloc": (Pointer, (ctypes.c_uint64,)),
    "ov_free": (None, (Pointer, ctypes.c_uint64)),
    "ov_layout_version": (ctypes.c_int32, ()),
    "ov_checksum": (ctypes.c_uint64, (Pointer, ctypes.c_uint64)),
    "ov_probe_read": (ctypes.c_double, (Pointer, Pointer, ctypes.c_uint64)),
    "ov_probe_amx": (ctypes.c_double, (Pointer, ctypes.c_int32)),
}


def find_library() -> Path | None:
    """The library that was built when the package was installed; None where no compiler was at hand.

    `OCTAVO_KERNEL_LIBRARY` names another one: a build with sanitizers, say.
    """
    if LIBRARY_VARIABLE in os.environ:
        return Path(os.environ[LIBRARY_VARIABLE])
    for folder in kernels.__path__:
        path = Path(folder) / FILE_NAME
        if path.is_file():
            return path
    return None


def usable_cores() -> int:
    """What this process may use, which in a container is less than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _cores_of_quota())
    return os.cpu_count() or 1


def _cores_of_quota() -> int:
    """A container's share of processor time, which does not show in the cores it may run on. With more
    threads than that, all of them stand still for the rest of a period whenever the share is used up."""
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no limit ("max"), or no such file
        return sys.maxsize


class KernelLibrary:
    """The functions of the C interface, with their types. Immutable; any number of engines may share it."""

    def __init__(self, path: Path) -> None:
        self.functions = ctypes.CDLL(str(path))
        self.declare(PROTOTYPES)

    def declare(self, prototypes: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> None:
        for name, (result, arguments) in prototypes.items():
            function = getattr(self.functions, name)
            function.restype = result
            function.argtypes = arguments

    @property
    def arithmetic(self) -> int:
        """The number of the definition that every result follows on every processor: octavo_kernels.h."""
        return int(self.functions.ov_arithmetic())

    @property
    def layout_version(self) -> int:
        """The number of the packed forms of weights: a file of them is of use under the same number only."""
        return int(self.functions.ov_layout_version())

    def checksum(self, address: int, num_bytes: int) -> int:
        """64 bits that tell accidental changes of memory, at its speed. Threads may call it at once."""
        return int(self.functions.ov_checksum(address, num_bytes))

    @property
    def best_isa(self) -> Isa:
        return Isa(self.functions.ov_best_isa())

    def has_isa(self, isa: Isa) -> bool:
        return bool(self.functions.ov_has_isa(isa))

    @property
    def isas(self) -> list[Isa]:
        """Those that this processor has, the best last."""
        return [isa for isa in Isa if self.has_isa(isa)]

    def has_format(self, name: str) -> bool:
        """Whether there are kernels for weights that are stored so."""
        return name in Format.__members__ and bool(self.functions.ov_has_format(Format[name]))

    def check(self, status: int) -> None:
        """The border refused the arguments: a mistake of the caller, and nothing was written."""
        if status:
            raise ValueError(f"native kernel: {self.functions.ov_status_text(status).decode()}")


class Engine:
    """Threads and scratch memory that kernels run on. One caller at a time, and one recording."""

    def __init__(self, library: KernelLibrary, num_threads: int, isa: Isa) -> None:
        self.library = library
        self.num_threads = num_threads
        self.isa = isa
        self.handle = Pointer()
        self._recorded: list[RecordedCall] | None = None
        library.check(library.functions.ov_engine_open(num_threads, isa, ctypes.byref(self.handle)))

    def run(self, arguments: KernelArguments, *memory: object) -> None:
        """One kernel. `memory` is what the arguments point to."""
        if self._recorded is not None:
            self._recorded.append(RecordedCall(arguments, memory))
            return
        function = getattr(self.library.functions, f"ov_{arguments.kernel.name.lower()}")
        self.library.check(function(self.handle, ctypes.byref(arguments)))

    @contextmanager
    def recording(self) -> Iterator[list[RecordedCall]]:
        """Kernels are written down and not run: what they give is garbage."""
        recorded: list[RecordedCall] = []
        self._recorded = recorded
        try:
            yield recorded
        finally:
            self._recorded = None

    def times(self) -> KernelTimes:
        """What the kernels took since the engine was opened; take the difference of two."""
        times = TimesStruct()
        self.library.check(self.library.functions.ov_engine_times(self.handle, ctypes.byref(times)))
        return KernelTimes(
            **{
                kind: KernelTime(getattr(times, kind).nanoseconds / 1e9, getattr(times, kind).calls)
                for kind in KernelTimes.__struct_fields__
            }
        )

    def probe_read(self, memory: "Memory", start: int, num_bytes: int) -> float:
        """Bytes per second when all threads read a part of the memory once."""
        if memory.address is None or start < 0 or num_bytes < 0 or start + num_bytes > memory.num_bytes:
            raise ValueError(f"{num_bytes} bytes from {start} on are not in a memory of {memory.num_bytes}")
        return float(self.library.functions.ov_probe_read(self.handle, memory.address + start, num_bytes))

    def probe_amx(self, num_steps: int) -> float:
        """Floating-point operations per second of all threads, multiplying tiles; 0 without AMX."""
        return float(self.library.functions.ov_probe_amx(self.handle, num_steps))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.functions.ov_engine_close(self.handle)


class Memory:
    """Zeroed memory on huge pages, given back with the object."""

    def __init__(self, library: KernelLibrary, num_bytes: int) -> None:
        self._library = library
        self.num_bytes = num_bytes
        self.address: int | None = library.functions.ov_alloc(num_bytes)
        if self.address is None:
            raise MemoryError(f"{num_bytes:,} bytes for packed weights or KV are not to be had")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._library.functions.ov_free(self.address, self.num_bytes)
