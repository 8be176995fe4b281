"""A file of packed weights: written once, checked at every start, mapped by any number of engines.

    bytes   0 ....... 16 ..... 24 ......... 32 ........... 2 MiB .....................
            MAGIC     length   checksum     header: JSON   data, in pieces of 16 MiB
                      of the header

The header contains the key and the checksum of every piece. The data starts at a multiple of the huge page
size, so that the system can map it with huge pages if the file system supports pages of that size.

Checksums detect accidental damage: a write cut short by a crash, a bad disk. They do not detect deliberate
changes, which can include the checksums; the permissions of the folder keep other users out.
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
MAX_THREADS = 4  # enough to read memory at full speed

# Checksum of (address, number of bytes). It must release the GIL.
Checksum = Callable[[int, int], int]


class PackedFileError(Exception):
    """The file is damaged or belongs to other weights. The message is the reason."""


class Header(msgspec.Struct, frozen=True):
    key: str
    model: str  # for human readers
    num_bytes: int  # size of the data
    checksums: tuple[int, ...]  # one per piece


class PackedMemory:
    """The mapped data of a file. It is unmapped with this object, so pointers into it must keep the object
    alive. The file stays locked for the same time; `is_in_use` checks this lock.
    """

    def __init__(self, descriptor: int, num_bytes: int, *, writable: bool) -> None:
        """Map the data. The mapping keeps a duplicate of the descriptor, and with it the lock."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(
            descriptor, num_bytes, flags=mmap.MAP_SHARED, prot=protection, offset=DATA_START
        )
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # huge pages are optional
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.num_bytes = num_bytes
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def checksums(self, checksum: Checksum) -> tuple[int, ...]:
        starts = range(0, self.num_bytes, PIECE_BYTES)
        with ThreadPoolExecutor(min(usable_cores(), MAX_THREADS)) as threads:
            return tuple(
                threads.map(
                    lambda at: checksum(self.address + at, min(PIECE_BYTES, self.num_bytes - at)), starts
                )
            )


def create(path: Path, num_bytes: int) -> PackedMemory:
    """Create a file without a header and return its zeroed memory. Raises OSError if there is no space or no
    permission."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Allocate all space now: on a full disk, a write to the mapping would kill the process.
        os.posix_fallocate(descriptor, DATA_START, num_bytes)
        return PackedMemory(descriptor, num_bytes, writable=True)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def seal(path: Path, memory: PackedMemory, key: str, model: str, checksum: Checksum) -> None:
    """Write the header, once the data is complete.

    Nothing is synced: if the machine crashes and data is lost, the checksums do not match.
    """
    header = msgspec.json.encode(Header(key, model, memory.num_bytes, memory.checksums(checksum)))
    content = PROLOGUE.pack(MAGIC, len(header), _checksum_of(header, checksum)) + header
    if len(content) > DATA_START:
        raise OSError(f"a header of {len(header):,} bytes is too large")
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def open_checked(path: Path, key: str, num_bytes: int, checksum: Checksum) -> PackedMemory:
    """Map the file after checking every byte. Raises PackedFileError if it is damaged or has another key, and
    FileNotFoundError if it does not exist."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        header = _read_header(descriptor, checksum)
        if header.key != key or header.num_bytes != num_bytes:
            raise PackedFileError("it contains other weights")
        if os.fstat(descriptor).st_size != DATA_START + num_bytes:
            raise PackedFileError("its size is wrong")
        memory = PackedMemory(descriptor, num_bytes, writable=False)
    finally:
        os.close(descriptor)
    if memory.checksums(checksum) != header.checksums:
        raise PackedFileError("its data does not match the checksums")
    return memory


def is_in_use(path: Path) -> bool:
    """Return whether a process has the file mapped or is writing it."""
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
        raise PackedFileError("it is truncated")
    magic, length, expected = PROLOGUE.unpack_from(content)
    header = content[PROLOGUE.size : PROLOGUE.size + length]
    if magic != MAGIC:
        raise PackedFileError("it has no header")
    if len(header) != length or _checksum_of(header, checksum) != expected:
        raise PackedFileError("its header does not match its checksum")
    try:
        return msgspec.json.decode(header, type=Header)
    except msgspec.MsgspecError as error:
        raise PackedFileError(f"its header cannot be read: {error}") from error


def _checksum_of(content: bytes, checksum: Checksum) -> int:
    array = np.frombuffer(content, np.uint8)
    return checksum(int(array.ctypes.data), array.size)
