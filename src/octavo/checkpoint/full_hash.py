"""The hash of every byte of a checkpoint's weights, remembered so that only the first start reads all."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from octavo.checkpoint.tensors import open_for_pread, read_exactly
from octavo.kernels.library import usable_cores

PIECE_BYTES = 16 << 20
MOST_THREADS = 4
# A file changed again within the resolution of its times would look the same. Resolutions are far below this.
SETTLED_NS = 2 * 10**9


class FileState(msgspec.Struct, frozen=True):
    """What changes whenever a file's content does."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> "FileState":
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Remembered(msgspec.Struct, frozen=True):
    state: FileState
    digest: str


def full_hash(files: Sequence[Path], folder: Path, on_read: Callable[[int], None] = lambda done: None) -> str:
    """Of the content of all files in their order. Digests are remembered in `folder`, if it can be written.

    `on_read` is told how many bytes have been hashed. A file's digest is the SHA-256 of the SHA-256 of its
    pieces, so that all cores can work on one file.
    """
    whole = hashlib.sha256()
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        on_read(done)

    for path in files:
        whole.update(bytes.fromhex(_digest(path, folder, count)))
    return whole.hexdigest()


def make_private(folder: Path) -> None:
    """The folder, for this user only, and its parent likewise."""
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _digest(path: Path, folder: Path, count: Callable[[int], None]) -> str:
    with open_for_pread(path) as descriptor:
        state = FileState.of(descriptor)
        note = folder / f"{state.device:x}-{state.inode:x}.json"
        remembered = _recall(note)
        if remembered is not None and remembered.state == state:
            return remembered.digest
        digest = _computed(descriptor, state.size, path, count)
        settled = time.time_ns() - max(state.mtime_ns, state.ctime_ns) > SETTLED_NS
        if settled and FileState.of(descriptor) == state:
            _remember(note, Remembered(state, digest))
        return digest


def _computed(descriptor: int, size: int, path: Path, count: Callable[[int], None]) -> str:
    def piece(start: int) -> tuple[int, bytes]:
        content = read_exactly(descriptor, start, min(PIECE_BYTES, size - start), path)
        return content.size, hashlib.sha256(content.data).digest()

    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with ThreadPoolExecutor(min(usable_cores(), MOST_THREADS)) as threads:
        for num_bytes, part in threads.map(piece, range(0, size, PIECE_BYTES)):
            digest.update(part)
            count(num_bytes)
    return digest.hexdigest()


def _recall(note: Path) -> Remembered | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError):
        return None


def _remember(note: Path, remembered: Remembered) -> None:
    """Without it the next start takes longer, and that is all."""
    draft = note.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        make_private(note.parent)
        draft.write_bytes(msgspec.json.encode(remembered))
        draft.replace(note)
