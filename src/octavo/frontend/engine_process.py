"""One incarnation of the engine: a process, its folder, and whether it is well."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from octavo.link.folder import EXIT_CANNOT_START, EngineFolder, EngineSettings
from octavo.link.run_folder import RunFolder
from octavo.link.status_page import Status

ENGINE_MODULE = "octavo.engine.process"

# Seconds without a stamp, beyond those that the engine itself has asked for.
STALE_AFTER = 3.0
HUNG_AFTER = 6.0
HELD = frozenset("TtD")  # how Linux shows a process that a signal or a debugger has stopped, or a disk
INATTENTIVE = 1.0  # seconds between two looks: we were stopped ourselves, and the engine perhaps with us


@dataclass(frozen=True)
class Death:
    """`is_hang`: it was alive, and what it computed is the only thing that can have kept it from stamping."""

    reason: str
    is_hang: bool = False
    request_id: str = ""  # with a hang: the request that the step was for, if it was for one alone


class EngineProcess:
    """Owned by EngineSupervisor, which looks at it all the time. `stop` must be called in the end."""

    def __init__(self, path: Path, settings: EngineSettings, module: str = ENGINE_MODULE) -> None:
        self.folder = EngineFolder.create(path, settings)
        self._page = self.folder.open_status()
        self._last_look = self._watched_since = time.monotonic()
        self._process = subprocess.Popen(
            # -P: nothing is imported from the folder we happen to be in.
            [sys.executable, "-P", "-m", module, str(path), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C and Ctrl-Z are for us
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> Status:
        return self._page.read()

    @property
    def is_stale(self) -> bool:
        """No step has begun for some time: not hung yet, but not well."""
        return self._overdue(self.status) > STALE_AFTER

    def death(self) -> Death | None:
        """Why this engine is no more, or None if it lives. To be called often."""
        now = time.monotonic()
        if now - self._last_look > INATTENTIVE:
            self._watched_since = now
        self._last_look = now
        code = self._process.poll()
        if code is not None:
            failure = self.folder.read_failure()
            return Death(failure or f"it ended with {f'signal {-code}' if code < 0 else f'code {code}'}")
        status = self.status
        if self._overdue(status) > HUNG_AFTER:
            silent = f"it has shown no sign of life for {now - status.stamp:.0f} s"
            if self._is_held:
                return Death(f"{silent}, stopped from outside or waiting for a disk")
            return Death(silent, is_hang=True, request_id=status.request_id)
        return None

    @property
    def cannot_start(self) -> bool:
        """No engine can be started with these settings; `death` says why."""
        return self._process.poll() == EXIT_CANNOT_START

    def kill(self) -> None:
        """At once. Killing is safe: nothing that matters is in there."""
        if self._process.poll() is None:
            self._process.kill()

    @property
    def is_gone(self) -> bool:
        """Its memory is free again."""
        return self._process.poll() is not None

    def stop(self) -> None:
        self.kill()
        self._process.wait()

    @property
    def _is_held(self) -> bool:
        """It could not have gone on, whatever it computed. (Only Linux tells.)"""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in HELD

    def _overdue(self, status: Status) -> float:
        return time.monotonic() - max(status.stamp, self._watched_since) - status.patience


@dataclass(frozen=True)
class FirstEngine:
    """An engine for a supervisor that is still to be imported: both take their time, and at the same time."""

    run_folder: RunFolder
    process: EngineProcess

    @classmethod
    def start(cls, settings: EngineSettings) -> Self:
        run_folder = RunFolder.create()
        try:
            return cls(run_folder, EngineProcess(run_folder.engine_path(0), settings))
        except BaseException:
            run_folder.remove()
            raise

    def stop(self) -> None:
        """Twice does no harm."""
        self.process.stop()
        self.run_folder.remove()
