"""The supervisor with engines that are no processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

    def __init__(self, on_kill: Callable[[], object], path: Path = Path()) -> None:
        self._on_kill = on_kill
        self.folder = SimpleNamespace(path=path)
        self.num_stops = 0

    def death(self) -> str:
        return "it ended with signal 9"

    def kill(self) -> None:
        self._on_kill()

    def stop(self) -> None:
        self.num_stops += 1


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


def test_an_engine_that_was_started_before_is_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def test() -> list[Path]:
        started: list[Path] = []
        killed: list[bool] = []
        second = asyncio.Event()

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            started.append(path)
            second.set()
            return DeadEngine(on_kill=lambda: None)

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        first: Any = DeadEngine(lambda: killed.append(not started), tmp_path / "run" / "engine-0")
        watched = supervisor.EngineSupervisor(EngineSettings({}, log_level="error"), Hub(), first=first)
        watched.start()
        await asyncio.wait_for(second.wait(), HANG_SECONDS)
        assert killed == [True], "it was watched until its death, before there was another"
        await watched.close()
        return started

    assert asyncio.run(test()) == [tmp_path / "run" / "engine-1"]


def test_a_supervisor_that_is_never_started_ends_the_engine_that_was(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "run").mkdir()
        first: Any = DeadEngine(lambda: None, tmp_path / "run" / "engine-0")
        watched = supervisor.EngineSupervisor(EngineSettings({}), Hub(), first=first)
        await watched.close()
        assert first.num_stops == 1
        assert not (tmp_path / "run").exists()

    asyncio.run(test())
