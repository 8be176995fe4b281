"""Supervision without timeouts, for tests that count restarts or usable replicas."""

import pytest

from octavo.frontend import engine_process
from patience import HANG_SECONDS


def take_no_pause_for_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let supervisors wait for an engine whose heartbeat is late: the machine may be busy.

    The engine in `engines.py` is still found to hang: it reports a heartbeat that is late by far more.
    """
    for name in ("SUSPECTED_AFTER", "HUNG_AFTER"):
        monkeypatch.setattr(engine_process, name, HANG_SECONDS)
