"""Hash of every byte of a checkpoint's weights, cached so that only the first start reads all files."""

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
MAX_THREADS = 4
# Two changes within the resolution of the timestamps are indistinguishable. Resolutions are far below this.
SETTLED_NS = 2 * 10**9


class FileState(msgspec.Struct, frozen=True):
    """File metadata that changes whenever the content changes."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, descriptor: int) -> "FileState":
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class CachedDigest(msgspec.Struct, frozen=True):
    state: FileState
    digest: str


def full_hash(files: Sequence[Path], folder: Path, on_read: Callable[[int], None] = lambda done: None) -> str:
    """Return the hash of the content of all files, in order. Digests are cached in `folder` if possible.

    `on_read` is called with the number of bytes hashed so far. The digest of a file is the SHA-256 of the
    SHA-256 digests of its pieces, so that several threads can hash one file.
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
    """Create the folder and its parent, accessible to this user only."""
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _digest(path: Path, folder: Path, count: Callable[[int], None]) -> str:
    with open_for_pread(path) as descriptor:
        state = FileState.of(descriptor)
        cache_file = folder / f"{state.device:x}-{state.inode:x}.json"
        cached = _read_cached(cache_file)
        if cached is not None and cached.state == state:
            return cached.digest
        digest = _compute_digest(descriptor, state.size, path, count)
        settled = time.time_ns() - max(state.mtime_ns, state.ctime_ns) > SETTLED_NS
        if settled and FileState.of(descriptor) == state:
            _write_cached(cache_file, CachedDigest(state, digest))
        return digest


def _compute_digest(descriptor: int, size: int, path: Path, count: Callable[[int], None]) -> str:
    def piece(start: int) -> tuple[int, bytes]:
        content = read_exactly(descriptor, start, min(PIECE_BYTES, size - start), path)
        return content.size, hashlib.sha256(content.data).digest()

    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with ThreadPoolExecutor(min(usable_cores(), MAX_THREADS)) as threads:
        for num_bytes, part in threads.map(piece, range(0, size, PIECE_BYTES)):
            digest.update(part)
            count(num_bytes)
    return digest.hexdigest()


def _read_cached(cache_file: Path) -> CachedDigest | None:
    try:
        return msgspec.json.decode(cache_file.read_bytes(), type=CachedDigest)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_cached(cache_file: Path, cached: CachedDigest) -> None:
    """Store the digest. Errors are ignored: without the cache, only the next start takes longer."""
    draft = cache_file.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        make_private(cache_file.parent)
        draft.write_bytes(msgspec.json.encode(cached))
        draft.replace(cache_file)
