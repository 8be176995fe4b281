"""Find and load the native library, and query what this processor supports.

This module does not import torch. Tensors are passed as pointers, which the other modules here check.
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
    """Instruction sets, as in octavo_kernels.h. They differ in speed; their results are bit-identical.

    `KernelLibrary.has_isa` returns whether this processor has one. The order of the numbers implies nothing.
    """

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AMX = 3
    NEON = 4


class Format(enum.IntEnum):
    """`ov_format`: how a weight is stored. `KernelLibrary.has_format` returns whether kernels support it."""

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
    memory: tuple[object, ...]  # kept alive, so that addresses within a recording are unique


class TimeStruct(ctypes.Structure):
    """`ov_time` of octavo_kernels.h"""

    _fields_ = (("nanoseconds", ctypes.c_uint64), ("calls", ctypes.c_uint64))


class TimesStruct(ctypes.Structure):
    """`ov_times`: one field per kind of kernel, with the names of `KernelTimes`."""

    _fields_ = tuple((kind, TimeStruct) for kind in KernelTimes.__struct_fields__)


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ov_status_text": (ctypes.c_char_p, (ctypes.c_int,)),
    "ov_arithmetic": (ctypes.c_int32, ()),
    "ov_has_isa": (ctypes.c_int, (ctypes.c_int32,)),
    "ov_best_isa": (ctypes.c_int, ()),
    "ov_has_format": (ctypes.c_int, (ctypes.c_int32,)),
    "ov_pool_open": (ctypes.c_int, (ctypes.c_int32, ctypes.c_int, ctypes.POINTER(Pointer))),
    "ov_pool_close": (None, (Pointer,)),
    "ov_pool_times": (ctypes.c_int, (Pointer, ctypes.POINTER(TimesStruct))),
    "ov_alloc": (Pointer, (ctypes.c_uint64,)),
    "ov_free": (None, (Pointer, ctypes.c_uint64)),
    "ov_layout_version": (ctypes.c_int32, ()),
    "ov_checksum": (ctypes.c_uint64, (Pointer, ctypes.c_uint64)),
    "ov_probe_read": (ctypes.c_double, (Pointer, Pointer, ctypes.c_uint64)),
    "ov_probe_amx": (ctypes.c_double, (Pointer, ctypes.c_int32)),
}


def find_library() -> Path | None:
    """Return the library that was built when the package was installed, or None if there was no compiler.

    `OCTAVO_KERNEL_LIBRARY` selects another one, for example a build with sanitizers.
    """
    if LIBRARY_VARIABLE in os.environ:
        return Path(os.environ[LIBRARY_VARIABLE])
    for folder in kernels.__path__:
        path = Path(folder) / FILE_NAME
        if path.is_file():
            return path
    return None


def usable_cores() -> int:
    """Return how many cores this process may use. In a container that can be less than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _quota_cores())
    return os.cpu_count() or 1


def _quota_cores() -> int:
    """Return the container's CPU quota in cores. The affinity mask does not reflect it. With more threads
    than that, all of them are throttled for the rest of a period once the quota is used up."""
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):  # no limit ("max"), or no such file
        return sys.maxsize


class KernelLibrary:
    """The functions of the C interface with their types. Immutable; any number of pools may share it."""

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
        """Version of the arithmetic that defines every result on every processor: see octavo_kernels.h."""
        return int(self.functions.ov_arithmetic())

    @property
    def layout_version(self) -> int:
        """Version of the layout of packed weights. A file of them is valid only for the same version."""
        return int(self.functions.ov_layout_version())

    def checksum(self, address: int, num_bytes: int) -> int:
        """Return a 64-bit checksum that detects accidental changes, at memory speed. Thread-safe."""
        return int(self.functions.ov_checksum(address, num_bytes))

    @property
    def best_isa(self) -> Isa:
        return Isa(self.functions.ov_best_isa())

    def has_isa(self, isa: Isa) -> bool:
        return bool(self.functions.ov_has_isa(isa))

    @property
    def isas(self) -> list[Isa]:
        """The instruction sets of this processor, the best last."""
        return [isa for isa in Isa if self.has_isa(isa)]

    def has_format(self, name: str) -> bool:
        """Return whether there are kernels for weights in this format."""
        return name in Format.__members__ and bool(self.functions.ov_has_format(Format[name]))

    def check(self, status: int) -> None:
        """Raise if the library rejected the arguments: an error of the caller. Nothing was written."""
        if status:
            raise ValueError(f"native kernel: {self.functions.ov_status_text(status).decode()}")


class KernelPool:
    """The kernel thread pool: threads and scratch memory that kernels run on.

    One caller at a time, and one recording.
    """

    def __init__(self, library: KernelLibrary, num_threads: int, isa: Isa) -> None:
        self.library = library
        self.num_threads = num_threads
        self.isa = isa
        self.handle = Pointer()
        self._recorded: list[RecordedCall] | None = None
        library.check(library.functions.ov_pool_open(num_threads, isa, ctypes.byref(self.handle)))

    def run(self, arguments: KernelArguments, *memory: object) -> None:
        """Run one kernel, or record it inside `recording`. `memory` is what the arguments point to."""
        if self._recorded is not None:
            self._recorded.append(RecordedCall(arguments, memory))
            return
        function = getattr(self.library.functions, f"ov_{arguments.kernel.name.lower()}")
        self.library.check(function(self.handle, ctypes.byref(arguments)))

    @contextmanager
    def recording(self) -> Iterator[list[RecordedCall]]:
        """Record kernels instead of running them. Their results are undefined."""
        recorded: list[RecordedCall] = []
        self._recorded = recorded
        try:
            yield recorded
        finally:
            self._recorded = None

    def times(self) -> KernelTimes:
        """Return the time that kernels took since the pool was opened. Subtract two for an interval."""
        times = TimesStruct()
        self.library.check(self.library.functions.ov_pool_times(self.handle, ctypes.byref(times)))
        return KernelTimes(
            **{
                kind: KernelTime(getattr(times, kind).nanoseconds / 1e9, getattr(times, kind).calls)
                for kind in KernelTimes.__struct_fields__
            }
        )

    def probe_read(self, memory: "Memory", start: int, num_bytes: int) -> float:
        """Return the bytes per second when all threads read a range of the memory once."""
        if memory.address is None or start < 0 or num_bytes < 0 or start + num_bytes > memory.num_bytes:
            raise ValueError(
                f"{num_bytes} bytes from {start} on are not inside a memory of {memory.num_bytes}"
            )
        return float(self.library.functions.ov_probe_read(self.handle, memory.address + start, num_bytes))

    def probe_amx(self, num_steps: int) -> float:
        """Return the floating-point operations per second when all threads multiply tiles; 0 without AMX."""
        return float(self.library.functions.ov_probe_amx(self.handle, num_steps))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.functions.ov_pool_close(self.handle)


class Memory:
    """Zeroed memory on huge pages, freed with the object."""

    def __init__(self, library: KernelLibrary, num_bytes: int) -> None:
        self._library = library
        self.num_bytes = num_bytes
        self.address: int | None = library.functions.ov_alloc(num_bytes)
        if self.address is None:
            raise MemoryError(f"cannot allocate {num_bytes:,} bytes for packed weights or KV")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._library.functions.ov_free(self.address, self.num_bytes)
