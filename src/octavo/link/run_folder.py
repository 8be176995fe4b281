"""The folder of one server, for the folders of its engines; and what servers that were killed have left."""

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
MOST_RESTARTS = 999_999  # the path of an engine with this number still fits


class RunFolder:
    """Only the user may look into it. Its lock is held as long as the owner lives, kill -9 or not: so the
    next server can tell which folders nobody needs any more."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock  # a file descriptor

    @classmethod
    def create(cls) -> Self:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        if not EngineFolder(path / _name(MOST_RESTARTS)).fits:
            path.rmdir()
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        sweep(path.parent)
        return cls(path, _locked(path))

    def engine_path(self, number: int) -> Path:
        """Where engine `number` has its folder. Should somebody have cleaned ours away, there is another."""
        if not (self.path / LOCK).exists():
            again = type(self).create()
            os.close(self._lock)
            self.path, self._lock = again.path, again._lock
        return self.path / _name(number)

    def remove_engine(self, number: int) -> None:
        shutil.rmtree(self.path / _name(number), ignore_errors=True)

    def remove(self) -> None:
        """Twice does no harm."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(parent: Path) -> None:
    """Remove the folders there whose owners are dead. Those of other users are left alone."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):  # somebody else sweeps too, or may not be swept
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
    """The lock gets its name when it is held: nobody finds it open."""
    unnamed = path / "new"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(path / LOCK)
    return descriptor
