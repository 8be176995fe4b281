"""The folder of one server, which contains those of its engines; cleanup after servers that were killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from octavo.link.folder import EngineFolder

PREFIX = "octavo-"
LOCK = "lock"
MAX_RESTARTS = 999_999  # the socket path of an engine with this number still fits


class RunFolder:
    """Accessible to the user only.

    The owner holds the folder's lock until it ends, even by SIGKILL. So the next server recognises the
    folders of dead servers and deletes them.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock  # a file descriptor

    @classmethod
    def create(cls) -> Self:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        if not EngineFolder(path / _name(MAX_RESTARTS)).fits:
            path.rmdir()
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        sweep(path.parent)
        return cls(path, _locked(path))

    def engine_path(self, number: int) -> Path:
        """Return the folder path of engine `number`. If the run folder was deleted, create a new one."""
        if not (self.path / LOCK).exists():
            again = type(self).create()
            os.close(self._lock)
            self.path, self._lock = again.path, again._lock
        return self.path / _name(number)

    def remove_engine(self, number: int) -> None:
        shutil.rmtree(self.path / _name(number), ignore_errors=True)

    def remove(self) -> None:
        """Delete the folder and release its lock. May be called more than once."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(parent: Path) -> None:
    """Delete the run folders in `parent` whose owners are dead, except those of other users."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # another server deletes it at the same time, or access is denied
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)


def _name(number: int) -> str:
    return f"engine-{number}"


def _locked(path: Path) -> int:
    """Lock the file before it gets its final name, so that other servers never find it unlocked."""
    unnamed = path / "new"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(path / LOCK)
    return descriptor
