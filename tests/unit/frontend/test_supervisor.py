"""The supervisor with fake engines instead of processes."""

import asyncio
import dataclasses
import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from data.engine_facts import IDLE_STATS, engine_facts
from octavo.frontend import supervisor
from octavo.frontend.engine_process import Death, FirstEngine
from octavo.frontend.hub import Hub
from octavo.frontend.socket_channel import SocketChannel
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import Phase
from octavo.link.run_folder import RunFolder
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS
from unit.frontend.scripted_hub import request


class DeadEngine:
    """An engine that dies while loading. `on_kill` is called when the supervisor has noticed."""

    pid, is_overdue, has_exited, cannot_start = 0, False, True, False
    heartbeat = SimpleNamespace(phase=Phase.LOADING)

    def __init__(self, on_kill: Callable[[], object], path: Path) -> None:
        self._on_kill = on_kill
        self.folder = SimpleNamespace(path=path)
        self.num_stops = 0

    def death(self) -> Death:
        return Death("it exited with signal 9")

    def kill(self) -> None:
        self._on_kill()

    def stop(self) -> None:
        self.num_stops += 1


def test_a_supervisor_closed_right_after_a_death_starts_no_other_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> int:
        num_engines = 0
        loop = asyncio.get_running_loop()

        def end() -> None:
            """Cancel the task, like `close`."""
            assert watched._task is not None
            watched._task.cancel()

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            nonlocal num_engines
            num_engines += 1
            # In the next loop iteration, the supervisor waits for the task that reads from the dead engine.
            return DeadEngine(lambda: loop.call_soon(end), path)

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        watched = supervisor.EngineSupervisor(EngineSettings({}, log_level="error"), Hub())
        watched.start()
        assert watched._task is not None
        await asyncio.wait([watched._task], timeout=HANG_SECONDS)
        assert watched._task.cancelled()
        await watched.close()
        return num_engines

    assert asyncio.run(test()) == 1


def test_an_engine_started_earlier_is_used_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        started: list[Path] = []
        killed: list[bool] = []
        second = asyncio.Event()

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            started.append(path)
            second.set()
            return DeadEngine(lambda: None, path)

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        run_folder = RunFolder.create()
        dead: Any = DeadEngine(lambda: killed.append(not started), run_folder.engine_path(0))
        watched = supervisor.EngineSupervisor(
            EngineSettings({}, log_level="error"), Hub(), first=FirstEngine(run_folder, dead)
        )
        watched.start()
        await asyncio.wait_for(second.wait(), HANG_SECONDS)
        assert killed == [True], "the supervisor watches it until its death, before it starts another"
        await watched.close()
        assert started == [run_folder.path / "engine-1"]

    asyncio.run(test())


def test_a_server_without_room_for_an_engine_stays_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead engine's heartbeat is overdue, but a restarted server would have no room either."""

    async def test() -> None:
        refused = asyncio.Event()

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            refused.set()
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        run_folder = RunFolder.create()
        dead: Any = DeadEngine(lambda: None, run_folder.engine_path(0))
        dead.is_overdue = True
        watched = supervisor.EngineSupervisor(
            EngineSettings({}, log_level="error"), Hub(), first=FirstEngine(run_folder, dead)
        )
        watched.start()
        await asyncio.wait_for(refused.wait(), HANG_SECONDS)
        assert watched.is_live
        await watched.close()

    asyncio.run(test())


def test_closing_an_unstarted_supervisor_stops_the_first_engine() -> None:
    async def test() -> None:
        run_folder = RunFolder.create()
        first: Any = DeadEngine(lambda: None, run_folder.engine_path(0))
        watched = supervisor.EngineSupervisor(EngineSettings({}), Hub(), first=FirstEngine(run_folder, first))
        await watched.close()
        assert first.num_stops == 1
        assert not run_folder.path.exists()

    asyncio.run(test())


def test_new_engines_expect_grammars_when_pending_requests_have_them(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    async def test() -> list[bool]:
        expected_grammars: list[bool] = []
        hub, third = Hub(), asyncio.Event()
        plain, strict = request(tokenizer, "plain"), request(tokenizer, "strict")
        grammar = GrammarSpec(
            GrammarKind.REGEX, "a+"
        )  # set directly, since intake rejects it for a tokenizer without an end-of-sequence token
        params = msgspec.structs.replace(strict.prepared.params, grammar=grammar)
        strict.prepared = dataclasses.replace(strict.prepared, params=params)
        submissions = iter([plain, strict])

        def submit_next() -> None:
            for in_flight in submissions:
                hub.submit(in_flight)
                break

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            expected_grammars.append(settings.expects_grammars)
            if len(expected_grammars) == 3:
                third.set()
            return DeadEngine(submit_next, path)

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        watched = supervisor.EngineSupervisor(EngineSettings({}, log_level="error"), hub)
        watched.start()
        await asyncio.wait_for(third.wait(), HANG_SECONDS)
        await watched.close()
        return expected_grammars

    assert asyncio.run(test()) == [False, False, True]


def test_a_command_to_replace_an_engine_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        num_engines, third = 0, asyncio.Event()

        def replace() -> None:
            watched._is_replacing = True  # just when the engine has died by itself

        def start_engine(path: Path, settings: EngineSettings, module: str) -> DeadEngine:
            nonlocal num_engines
            num_engines += 1
            if num_engines == 3:
                third.set()
            return DeadEngine(replace, path)

        monkeypatch.setattr(supervisor, "EngineProcess", start_engine)
        watched = supervisor.EngineSupervisor(EngineSettings({}, log_level="error"), Hub())
        watched.start()
        await asyncio.wait_for(third.wait(), HANG_SECONDS)
        assert watched.last_death is not None, "it was not replaced: it has died"
        await watched.close()

    asyncio.run(test())


class FakeChannel:
    """A channel to an engine that is ready and sends nothing."""

    facts, stats, version = engine_facts(), IDLE_STATS, 2
    is_closed = False

    def ask_prefixes(self) -> None:
        pass

    async def read(self, *_: object) -> None:
        raise OSError("cut")

    def close(self) -> None:
        self.is_closed = True


def test_a_closed_supervisor_does_not_connect_to_an_engine() -> None:
    async def test() -> None:
        hub, channel = Hub(), FakeChannel()
        watched = supervisor.EngineSupervisor(EngineSettings({}), hub)
        await watched.close()
        watched._connect(channel)  # type: ignore[arg-type]
        assert hub.num_replicas == 0
        assert watched.state is supervisor.EngineState.CLOSED

    asyncio.run(test())


def test_the_channel_is_closed_even_if_the_hub_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        hub, channel = Hub(), FakeChannel()
        watched = supervisor.EngineSupervisor(EngineSettings({}), hub)
        engine: Any = SimpleNamespace(
            heartbeat=SimpleNamespace(phase=Phase.SERVING), folder=SimpleNamespace(address=""), in_slots=None
        )

        async def open_channel(*_: object) -> FakeChannel:
            return channel

        def fail(*_: object) -> None:
            raise KeyError("r0")

        monkeypatch.setattr(SocketChannel, "open", open_channel)
        monkeypatch.setattr(hub, "disconnect", fail)
        with pytest.raises(KeyError):
            await watched._read(engine, supervisor.EngineRun())
        assert channel.is_closed
        monkeypatch.undo()
        await watched.close()

    asyncio.run(test())
