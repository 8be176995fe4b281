"""One file of packed weights: written once, checked at every start, mapped by any number of engines.

    bytes   0 ....... 16 ..... 24 ......... 32 ........... 2 MiB .....................
            MAGIC     length   checksum     header: JSON   data, in pieces of 16 MiB
                      of the header

The header has the key and the checksum of every piece. The data begins at a multiple of a huge page, so that
the system can map it with huge pages if the file system gives it pages of that size.

Checksums find what accidents do: a write cut short by a crash, a bad disk. Whoever can change the file on
purpose can change its checksums too; the folder's mode keeps others out.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from octavo.kernels.library import usable_cores

MAGIC = b"octavo packed 1\n"
PROLOGUE = struct.Struct("<16sQQ")
DATA_START = 2 << 20
PIECE_BYTES = 16 << 20
MOST_THREADS = 4  # as many as it takes to read memory at full speed

# Of (address, number of bytes). It must let go of the interpreter's lock.
Checksum = Callable[[int, int], int]


class PackedFileError(Exception):
    """The file is not what it should be; why."""


class Header(msgspec.Struct, frozen=True):
    key: str
    model: str  # for people
    num_bytes: int  # of data
    checksums: tuple[int, ...]  # of each piece


class PackedMemory:
    """The data of a file, mapped; unmapped with the object, which therefore owns whatever points into it.

    The file stays locked as long: `is_in_use` tells others.
    """

    def __init__(self, descriptor: int, num_bytes: int, *, writable: bool) -> None:
        """The map keeps a duplicate of the descriptor, and with it the lock."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(
            descriptor, num_bytes, flags=mmap.MAP_SHARED, prot=protection, offset=DATA_START
        )
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a wish
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.num_bytes = num_bytes
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def checksums(self, checksum: Checksum) -> tuple[int, ...]:
        starts = range(0, self.num_bytes, PIECE_BYTES)
        with ThreadPoolExecutor(min(usable_cores(), MOST_THREADS)) as threads:
            return tuple(
                threads.map(
                    lambda at: checksum(self.address + at, min(PIECE_BYTES, self.num_bytes - at)), starts
                )
            )


def create(path: Path, num_bytes: int) -> PackedMemory:
    """Zeroed memory of a new file that has no header yet. OSError: no room, no permission."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # All of it now: with a full disk, writing to a mapping would end the process instead.
        os.posix_fallocate(descriptor, DATA_START, num_bytes)
        return PackedMemory(descriptor, num_bytes, writable=True)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def seal(path: Path, memory: PackedMemory, key: str, model: str, checksum: Checksum) -> None:
    """Write the header, once the data is complete.

    Nothing is synced: a file that a crash of the machine left without some of its data has a wrong checksum.
    """
    header = msgspec.json.encode(Header(key, model, memory.num_bytes, memory.checksums(checksum)))
    content = PROLOGUE.pack(MAGIC, len(header), _checksum_of(header, checksum)) + header
    if len(content) > DATA_START:
        raise OSError(f"{len(header):,} bytes of header are too many")
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def open_checked(path: Path, key: str, num_bytes: int, checksum: Checksum) -> PackedMemory:
    """Every byte is what was written, or PackedFileError. FileNotFoundError: there is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        header = _read_header(descriptor, checksum)
        if header.key != key or header.num_bytes != num_bytes:
            raise PackedFileError("it holds other weights")
        if os.fstat(descriptor).st_size != DATA_START + num_bytes:
            raise PackedFileError("it was cut")
        memory = PackedMemory(descriptor, num_bytes, writable=False)
    finally:
        os.close(descriptor)
    if memory.checksums(checksum) != header.checksums:
        raise PackedFileError("its data was altered")
    return memory


def is_in_use(path: Path) -> bool:
    """Whether some process has it mapped, or writes it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _read_header(descriptor: int, checksum: Checksum) -> Header:
    content = os.pread(descriptor, DATA_START, 0)
    if len(content) < PROLOGUE.size:
        raise PackedFileError("it was cut")
    magic, length, expected = PROLOGUE.unpack_from(content)
    header = content[PROLOGUE.size : PROLOGUE.size + length]
    if magic != MAGIC:
        raise PackedFileError("it has no header")
    if len(header) != length or _checksum_of(header, checksum) != expected:
        raise PackedFileError("its header was altered")
    try:
        return msgspec.json.decode(header, type=Header)
    except msgspec.MsgspecError as error:
        raise PackedFileError(f"its header cannot be read: {error}") from error


def _checksum_of(content: bytes, checksum: Checksum) -> int:
    array = np.frombuffer(content, np.uint8)
    return checksum(int(array.ctypes.data), array.size)
