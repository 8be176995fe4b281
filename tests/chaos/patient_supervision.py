"""Supervision for tests that count deaths, restarts or usable replicas: a paused machine causes none."""

import pytest

from octavo.frontend import engine_process
from patience import HANG_SECONDS


def take_no_pause_for_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither suspect nor kill an engine that is late, because its machine may only be slow.

    One that reports to be hung still is: see `engines.py`.
    """
    for name in ("SUSPECTED_AFTER", "HUNG_AFTER"):
        monkeypatch.setattr(engine_process, name, HANG_SECONDS)
