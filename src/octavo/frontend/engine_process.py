"""One incarnation of the engine: a process, its folder, and whether it is well."""

import subprocess
import sys
from pathlib import Path

from octavo.link.folder import EXIT_CANNOT_START, EngineFolder, EngineSettings
from octavo.link.status_page import Phase, Status

# Seconds without a stamp. A step may take long on a slow machine: then so may the next, and a bit more.
STALE_AFTER = 3.0
HUNG_AFTER = 8.0
HUNG_WHILE_LOADING = 120.0
STEPS_OF_PATIENCE = 4


class EngineProcess:
    """Owned by the supervisor. `stop` must be called in the end."""

    def __init__(self, path: Path, settings: EngineSettings) -> None:
        self.folder = EngineFolder.create(path, settings)
        self._page = self.folder.open_status()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo.engine.process", str(path)], stdin=subprocess.DEVNULL
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
        return self._is_older_than(STALE_AFTER)

    def death(self) -> str | None:
        """Why this engine is no more, or None if it lives."""
        code = self._process.poll()
        if code is not None:
            return f"it ended with {f'signal {-code}' if code < 0 else f'code {code}'}"
        if self._is_older_than(HUNG_AFTER):
            return f"it has not begun a step for {self.status.age:.0f} s"
        return None

    @property
    def refusal(self) -> str | None:
        """Why no engine can be started with these settings."""
        return self.folder.read_failure() if self._process.poll() == EXIT_CANNOT_START else None

    def stop(self) -> None:
        """At once. Killing is safe: nothing that matters is in there."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _is_older_than(self, seconds: float) -> bool:
        status = self.status
        if status.phase is not Phase.SERVING:
            seconds = HUNG_WHILE_LOADING
        return status.age > max(seconds, STEPS_OF_PATIENCE * status.longest_step)
