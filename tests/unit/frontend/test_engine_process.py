"""How the death of an engine process with an overdue heartbeat is reported."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.frontend.engine_process import EngineProcess
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import Phase
from patience import HANG_SECONDS

SLEEPER = """
import sys, time
from pathlib import Path
(Path(sys.argv[1]) / "sleeps").touch()
time.sleep(1e6)
"""


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    """Start a process that sleeps. Its heartbeat is overdue and names r1 as its only request."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = EngineProcess(tmp_path / "engine", EngineSettings({}), "sleeper")
    deadline = time.monotonic() + HANG_SECONDS
    while not (engine.folder.path / "sleeps").exists():
        assert time.monotonic() < deadline, "the process did not start"
        time.sleep(0.002)
    engine.folder.open_heartbeat().write(Phase.SERVING, timeout=-1e9, request_id="r1")
    yield engine
    engine.stop()


def test_a_hang_is_attributed_to_the_request_in_the_heartbeat(silent: EngineProcess) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not ((death := silent.death()) and death.is_hang):
        assert time.monotonic() < deadline, death
        time.sleep(0.002)
    assert death.request_id == "r1"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_stopped_process_is_not_a_hang(silent: EngineProcess) -> None:
    os.kill(silent.pid, signal.SIGSTOP)
    os.waitpid(silent.pid, os.WUNTRACED)  # wait until it has stopped
    death = silent.death()
    assert death is not None
    assert not death.is_hang
    assert death.request_id == ""
