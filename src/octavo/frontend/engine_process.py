"""One engine process: its folder, its heartbeat and its health."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from octavo.link.folder import EXIT_CANNOT_START, EngineFolder, EngineSettings
from octavo.link.heartbeat import Heartbeat
from octavo.link.run_folder import RunFolder

ENGINE_MODULE = "octavo.engine.process"

# Seconds since the last heartbeat, unless the engine's own timeout is longer.
SUSPECTED_AFTER = 2.5
# Seconds beyond the timeout that the engine wrote into its heartbeat.
OVERDUE_AFTER = 3.0
HUNG_AFTER = 6.0
# Process states of Linux: stopped by a signal, stopped by a debugger, waiting for a disk.
STOPPED_STATES = frozenset("TtD")
# Seconds. After a longer gap between two polls, this process was itself stopped, and perhaps the engine too.
MAX_POLL_GAP = 1.0


@dataclass(frozen=True)
class Death:
    """Why an engine ended.

    `is_hang`: the process was running, so only its computation can have delayed the heartbeat.
    """

    reason: str
    is_hang: bool = False
    request_id: str = ""  # after a hang: the only request in the step; empty if there were several


class EngineProcess:
    """Owned by EngineSupervisor, which polls it continuously and must call `stop` at the end."""

    def __init__(self, path: Path, settings: EngineSettings, module: str = ENGINE_MODULE) -> None:
        self.folder = EngineFolder.create(path, settings)
        self._heartbeat_file = self.folder.open_heartbeat()
        self._last_poll = self._watched_since = time.monotonic()
        self._process = subprocess.Popen(
            # -P: do not import modules from the current folder.
            [sys.executable, "-P", "-m", module, str(path), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C and Ctrl-Z reach this process only
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def heartbeat(self) -> Heartbeat:
        return self._heartbeat_file.read()

    @property
    def in_slots(self) -> frozenset[int] | None:
        """The numbers of the requests that the engine is computing; None if not all are known."""
        return self._heartbeat_file.in_slots()

    @property
    def is_suspected(self) -> bool:
        """Whether the engine does not respond, although it may do so later."""
        heartbeat = self.heartbeat
        return self._silent(heartbeat) > max(SUSPECTED_AFTER, heartbeat.timeout)

    @property
    def is_overdue(self) -> bool:
        """Whether the heartbeat is overdue, by OVERDUE_AFTER. Beyond HUNG_AFTER, the engine is hung."""
        return self._overdue(self.heartbeat) > OVERDUE_AFTER

    def death(self) -> Death | None:
        """Return why this engine died or hung; None while it is alive. Call it at least once per second."""
        now = time.monotonic()
        if now - self._last_poll > MAX_POLL_GAP:
            self._watched_since = now
        self._last_poll = now
        code = self._process.poll()
        if code is not None:
            failure = self.folder.read_failure()
            return Death(failure or f"it exited with {f'signal {-code}' if code < 0 else f'code {code}'}")
        heartbeat = self.heartbeat
        if self._overdue(heartbeat) > HUNG_AFTER:
            silent = f"its last heartbeat was {now - heartbeat.written_at:.0f} s ago"
            if self._is_stopped:
                return Death(f"{silent}; the process is stopped or waits for a disk")
            return Death(silent, is_hang=True, request_id=heartbeat.request_id)
        return None

    @property
    def cannot_start(self) -> bool:
        """Whether no engine can be started with these settings; `death` returns the reason."""
        return self._process.poll() == EXIT_CANNOT_START

    def kill(self) -> None:
        """Kill the process at once. This is safe: the engine holds no state that cannot be recomputed."""
        if self._process.poll() is None:
            self._process.kill()

    @property
    def has_exited(self) -> bool:
        """Whether the process has ended and its memory is free again."""
        return self._process.poll() is not None

    def stop(self) -> None:
        self.kill()
        self._process.wait()

    @property
    def _is_stopped(self) -> bool:
        """Whether the process could not run, whatever it computed. Known on Linux only; elsewhere False."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in STOPPED_STATES

    def _overdue(self, heartbeat: Heartbeat) -> float:
        return self._silent(heartbeat) - heartbeat.timeout

    def _silent(self, heartbeat: Heartbeat) -> float:
        """Return the seconds since the last heartbeat in which this process was watching."""
        return time.monotonic() - max(heartbeat.written_at, self._watched_since)


@dataclass(frozen=True)
class FirstEngine:
    """An engine that is started before its supervisor is imported, so that both load at the same time."""

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
        """Stop the engine and remove its folder. May be called more than once."""
        self.process.stop()
        self.run_folder.remove()
