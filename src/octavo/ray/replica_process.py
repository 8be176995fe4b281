"""One `octavo replica` on this machine, whose supervisor may be replaced.

The process is not a child of its supervisor, because a Ray worker that ends kills its children. So its
requests go on, and the next supervisor on this machine adopts it:

    FOLDER/DIGEST-ID/lock      held by the supervisor
    FOLDER/DIGEST-ID/alive     a lock that the replica holds while it runs
    FOLDER/DIGEST-ID/notify    socket; the replica reports here, with the sd_notify protocol

All are found by their path. The kernel says which process has sent a report, so there is no file with a
process id that might be outdated.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from octavo.errors import OctavoError
from octavo.link.folder import MAX_SOCKET_PATH
from octavo.ray.spec import ReplicaSpec
from octavo.replica.report import REPORT_SECONDS, InvalidReport, ReplicaReport, parse_report

logger = logging.getLogger(__name__)

MAX_NOTIFICATION = 4096
ADOPTION_SECONDS = 30 * REPORT_SECONDS  # that a running process may take to report
OCTAVO = (sys.executable, "-m", "octavo.cli.main")
# Start a command as a child of the init process, and print its process id.
LAUNCH = ("/bin/sh", "-c", '"$@" >&2 & echo $!', "sh")
CREDENTIALS = struct.Struct("3i")  # pid, user, group


class FolderNotUsable(OctavoError):
    """The folder of the replicas is too deep, or other users may have written to it."""


def replicas_folder(fleet: str) -> Path:
    """Return the folder of this user's replicas of a fleet, which exists then. Raises FolderNotUsable."""
    base = Path(tempfile.gettempdir()) / f"octavo-ray-{os.getuid()}"
    for folder in (base, base / fleet):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise FolderNotUsable(f"{folder} must be a folder that only its user can access: remove it")
    if len(os.fsencode(base / fleet / "12345678-123456/notify")) > MAX_SOCKET_PATH:
        raise FolderNotUsable(f"the path {base / fleet} is too long for sockets: set a shorter TMPDIR")
    return base / fleet


class ReplicaProcess:
    """Owned by one thread."""

    def __init__(self, folder: Path, lock: int, notifications: socket.socket) -> None:
        self._folder = folder
        self._lock = lock
        self._notifications = notifications
        self._pidfd: int | None = None  # None: it has ended, or (adopt) it has not reported yet
        self.report: ReplicaReport | None = None
        self.reported_at = time.monotonic()

    @classmethod
    def start(cls, spec: ReplicaSpec, host: str) -> Self:
        """Start a replica that listens on an address of this machine."""
        identifier = secrets.token_hex(3)
        folder = replicas_folder(spec.fleet) / f"{spec.digest}-{identifier}"
        new = folder.with_name(f".{identifier}")  # which no other supervisor looks at
        new.mkdir(mode=0o700)
        lock, alive = _take_lock(new, "lock"), _take_lock(new, "alive")
        assert lock is not None, "the folder is new"
        assert alive is not None, "the folder is new"
        process = cls(folder, lock, _bind(new))
        new.rename(folder)
        try:
            process._launch(spec, host, identifier, alive)
        except BaseException:
            process.remove()
            raise
        finally:
            os.close(alive)
        return process

    def _launch(self, spec: ReplicaSpec, host: str, identifier: str, alive: int) -> None:
        command = (
            *(*LAUNCH, *OCTAVO, "replica", *spec.arguments),
            *("--listen", f"[{host}]:{spec.port}" if ":" in host else f"{host}:{spec.port}"),
            *("--replica-name", f"{spec.fleet}-{identifier}"),
            *("--supervisor-timeout", f"{spec.supervisor_timeout:g}"),
        )
        # The token of Ray's authentication is in such a variable. An engine does not need it.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environ["NOTIFY_SOCKET"] = str(self._folder / "notify")
        launched = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
            pass_fds=(alive,),
        )
        with contextlib.suppress(ProcessLookupError):
            self._pidfd = os.pidfd_open(int(launched.stdout))

    @classmethod
    def adopt(cls, spec: ReplicaSpec) -> Self | None:
        """Take over a replica on this machine that has no supervisor; None if there is none. Those that are
        not like `spec` are ended, and what dead ones have left is removed."""
        for folder in sorted(replicas_folder(spec.fleet).iterdir()):
            lock = None if folder.name.startswith(".") else _take_lock(folder, "lock")
            if lock is None:
                continue
            process = cls(folder, lock, _bind(folder))
            alive = _take_lock(folder, "alive")
            if alive is not None:  # it has ended
                os.close(alive)
                process.remove()
                continue
            report = process._wait_for_report()
            if report is not None and not report.is_draining:
                if folder.name.startswith(f"{spec.digest}-"):
                    return process
                logger.info("ending %s, which has other options", report.name)
                process.terminate()
            process.release()
        return None

    def poll(self) -> bool:
        """Read all reports. Return whether the process runs."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._read()
        return self._pidfd is not None and not select.select([self._pidfd], [], [], 0)[0]

    def terminate(self) -> None:
        """Let it move its requests to other replicas, and end."""
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._send_signal(signal.SIGKILL)

    def remove(self) -> None:
        """Remove what belongs to a process that has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Leave the process to another supervisor."""
        self._notifications.close()
        os.close(self._lock)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _wait_for_report(self) -> ReplicaReport | None:
        deadline = time.monotonic() + ADOPTION_SECONDS
        while self.report is None and (left := deadline - time.monotonic()) > 0:
            if select.select([self._notifications], [], [], left)[0]:
                self._read()
        return self.report

    def _read(self) -> None:
        """Read one notification. Raises BlockingIOError if there is none."""
        message, others, _, _ = self._notifications.recvmsg(
            MAX_NOTIFICATION, socket.CMSG_SPACE(CREDENTIALS.size)
        )
        try:
            report = parse_report(message)
        except InvalidReport as error:
            logger.error("%s: %s", self._folder.name, error)
            return
        if report is None:
            return
        if self._pidfd is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._pidfd = os.pidfd_open(_sender(others))
        if self._pidfd is not None:
            self.report, self.reported_at = report, time.monotonic()

    def _send_signal(self, number: int) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


def _take_lock(folder: Path, name: str) -> int | None:
    """Return a lock in a folder, which is held until it is closed; None if another process holds it."""
    try:
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):  # another supervisor has removed it
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_current = os.path.samestat((folder / name).stat(), os.fstat(lock))
    except (BlockingIOError, FileNotFoundError, NotADirectoryError):
        is_current = False
    if not is_current:  # held by another supervisor, or removed by it in the meantime
        os.close(lock)
        return None
    return lock


def _bind(folder: Path) -> socket.socket:
    path = folder / "notify"
    path.unlink(missing_ok=True)
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    notifications.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    notifications.setblocking(False)
    notifications.bind(str(path))
    return notifications


def _sender(others: list[tuple[int, int, bytes]]) -> int:
    for level, kind, content in others:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid: int = CREDENTIALS.unpack(content)[0]
            return pid
    raise AssertionError("the socket has SO_PASSCRED")
