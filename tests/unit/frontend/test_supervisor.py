"""The supervisor with engines that are no processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo.frontend import supervisor
from octavo.frontend.hub import Hub
from octavo.link.folder import EngineSettings
from octavo.link.status_page import Phase
from patience import HANG_SECONDS


class DeadEngine:
    """It dies while it is loading. `on_kill` is called when the supervisor has seen that."""

    pid, is_stale, is_gone, cannot_start = 0, False, True, False
    status = SimpleNamespace(phase=Phase.LOADING)

    def __init__(self, on_kill: Callable[[], object]) -> None:
        self._on_kill = on_kill

    def death(self) -> str:
        return "it ended with signal 9"

    def kill(self) -> None:
        self._on_kill()

    def stop(self) -> None:
        pass


def test_a_supervisor_that_is_ended_right_after_a_death_starts_no_other_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> int:
        num_engines = 0
        loop = asyncio.get_running_loop()

        def end() -> None:
            """As `close` does."""
            assert watched._task is not None
            watched._task.cancel()

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            nonlocal num_engines
            num_engines += 1
            # When the loop turns again, the supervisor waits for the task that reads from the dead engine.
            return DeadEngine(on_kill=lambda: loop.call_soon(end))

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        watched = supervisor.EngineSupervisor(EngineSettings({}, log_level="error"), Hub())
        watched.start()
        assert watched._task is not None
        await asyncio.wait([watched._task], timeout=HANG_SECONDS)
        assert watched._task.cancelled()
        await watched.close()
        return num_engines

    assert asyncio.run(test()) == 1
