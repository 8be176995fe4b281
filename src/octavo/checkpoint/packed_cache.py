"""Cache of packed weights on disk: the first start of a model packs them, every later start maps the file.

    FOLDER/KEY.packed        see `packed_file`
    FOLDER/KEY.PID.tmp       being packed
    FOLDER/KEY.lock          held by the process that packs
    FOLDER/hashes/           see `full_hash`

The cache is optional: if it fails, the error is logged and the weights are packed into memory.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from octavo.checkpoint import packed_file
from octavo.checkpoint.full_hash import make_private
from octavo.checkpoint.packed_file import Checksum, PackedFileError, PackedMemory
from octavo.config import format_size

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "OCTAVO_CACHE_DIR"
MAX_WAIT = 600.0  # seconds to wait while another process packs the same weights
POLL_SECONDS = 0.1


def default_folder() -> Path:
    """Return the folder for caches. Its content may be deleted at any time."""
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "octavo"
    return Path(os.path.expanduser("~")) / ".cache" / "octavo"


class PackedCache:
    """Packed weights in a folder that any number of processes may share."""

    def __init__(self, folder: Path, max_bytes: int, checksum: Checksum, *, layout_version: int) -> None:
        """`max_bytes` limits the total size of all files. The least recently used files are evicted first;
        files in use are never evicted."""
        self.folder = folder
        self._max_bytes = max_bytes
        self._checksum = checksum
        self.layout_version = layout_version  # version of the layout of packed weights

    @property
    def hashes(self) -> Path:
        return self.folder / "hashes"

    def load(
        self,
        key: str,
        model: str,
        num_bytes: int,
        pack: Callable[[PackedMemory], None],
        while_waiting: Callable[[], None] = lambda: None,
    ) -> PackedMemory | None:
        """Return the weights for this key, mapped and checked. If the cache has none, `pack` writes them into
        zeroed memory. Return None if they cannot be cached."""
        try:
            make_private(self.folder)
            found = self._find(key, num_bytes)
            if found is not None:
                return found
            with self._packing(key, while_waiting) as is_ours:
                if not is_ours:
                    logger.warning(
                        "packed weights are not shared: another process is still packing after %.0f s",
                        MAX_WAIT,
                    )
                    return None
                found = self._find(key, num_bytes)
                if found is None and self._make_room(num_bytes):
                    self._pack(key, model, num_bytes, pack)
                    found = self._find(key, num_bytes)
                return found
        except OSError as error:
            logger.warning("packed weights are not cached in %s: %s", self.folder, error.strerror or error)
            return None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.packed"

    def _find(self, key: str, num_bytes: int) -> PackedMemory | None:
        path = self._path(key)
        try:
            memory = packed_file.open_checked(path, key, num_bytes, self._checksum)
        except FileNotFoundError:
            return None
        except PackedFileError as error:
            logger.warning("deleting and repacking %s: %s", path, error)
            path.unlink(missing_ok=True)
            return None
        with suppress(OSError):  # the file belongs to another user, or the disk is read-only
            os.utime(path)  # mark as used now
        return memory

    def _pack(self, key: str, model: str, num_bytes: int, pack: Callable[[PackedMemory], None]) -> None:
        draft = self.folder / f"{key}.{os.getpid()}.tmp"
        draft.unlink(missing_ok=True)  # left by a dead process with the same PID
        memory = packed_file.create(draft, num_bytes)
        try:
            pack(memory)
            packed_file.seal(draft, memory, key, model, self._checksum)
            draft.replace(self._path(key))
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _packing(self, key: str, while_waiting: Callable[[], None]) -> Iterator[bool]:
        """Lock the key, waiting while another process packs. Yield whether this process holds the lock."""
        path = self.folder / f"{key}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            is_ours = _lock_within(MAX_WAIT, descriptor, while_waiting)
            yield is_ours
            if is_ours:
                path.unlink(missing_ok=True)  # processes that still wait will find the packed file
        finally:
            os.close(descriptor)

    def _make_room(self, num_bytes: int) -> bool:
        """Delete the least recently used files until `num_bytes` fit. Return whether they fit."""
        for draft in self.folder.glob("*.tmp"):
            if not packed_file.is_in_use(draft):  # the process that wrote it was killed
                draft.unlink(missing_ok=True)
        stats = [(path.stat(), path) for path in self.folder.glob("*.packed")]
        total = sum(stat.st_size for stat, _ in stats)
        if num_bytes > self._max_bytes:
            stats = []  # they never fit, so evict nothing
        for stat, path in sorted(stats, key=lambda entry: entry[0].st_mtime_ns):
            if total + num_bytes <= self._max_bytes:
                break
            if not packed_file.is_in_use(path):
                logger.info("deleting %s to make room for other packed weights", path)
                path.unlink(missing_ok=True)
                total -= stat.st_size
        if total + num_bytes > self._max_bytes:
            logger.warning(
                "packed weights (%s) are not cached: limit %s (--weight-cache-size), files in use %s",
                *map(format_size, (num_bytes, self._max_bytes, total)),
            )
            return False
        return True


def _lock_within(seconds: float, descriptor: int, while_waiting: Callable[[], None]) -> bool:
    deadline = time.monotonic() + seconds
    logged = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        if not logged:
            logger.info("waiting for another process to pack the same weights")
            logged = True
        while_waiting()
        time.sleep(POLL_SECONDS)
