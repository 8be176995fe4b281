"""What is said of a process that shows no sign of life."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.frontend.engine_process import EngineProcess
from octavo.link.folder import EngineSettings
from octavo.link.status_page import Phase
from patience import HANG_SECONDS

SLEEPER = """
import sys, time
from pathlib import Path
(Path(sys.argv[1]) / "sleeps").touch()
time.sleep(1e6)
"""


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    """A process that sleeps. Its page is long out of date, and says that it worked for r1 alone."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    engine = EngineProcess(tmp_path / "engine", EngineSettings({}), "sleeper")
    deadline = time.monotonic() + HANG_SECONDS
    while not (engine.folder.path / "sleeps").exists():
        assert time.monotonic() < deadline, "it never came to life"
        time.sleep(0.002)
    engine.folder.open_status().stamp(Phase.SERVING, patience=-1e9, request_id="r1")
    yield engine
    engine.stop()


def test_a_process_that_hangs_does_so_over_the_request_on_its_page(silent: EngineProcess) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not ((death := silent.death()) and death.is_hang):
        assert time.monotonic() < deadline, death
        time.sleep(0.002)
    assert death.request_id == "r1"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells")
def test_a_process_that_was_stopped_hangs_over_nothing(silent: EngineProcess) -> None:
    os.kill(silent.pid, signal.SIGSTOP)
    os.waitpid(silent.pid, os.WUNTRACED)  # until it has stopped
    death = silent.death()
    assert death is not None
    assert not death.is_hang
    assert death.request_id == ""
