"""Engines that are killed, poisoned or cannot start: streams continue, and no process or file is left.

tests/load/deaths.py has the tests over HTTP, with many streams on engines that are killed or stopped.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from chaos.asking import Asker, Request, requests_of_every_kind
from chaos.patient_supervision import take_no_pause_for_a_fault
from octavo.checkpoint import open_checkpoint
from octavo.engine.core import STEP_FAILED
from octavo.frontend.hub import Hub
from octavo.frontend.in_flight import ENGINE_HUNG, ENGINE_LOST, MAX_REPLAYS
from octavo.frontend.supervisor import EngineState, EngineSupervisor
from octavo.kernels.library import KernelLibrary, find_library
from octavo.link.folder import EngineSettings
from octavo.link.heartbeat import Phase
from octavo.protocol import SamplingParams
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS

NUM_TOKENS = 300
POISON = [255, 255]  # as in engines.py
FAULT = 254
HANG = 253


class Harness(Asker):
    """A supervised engine, and methods that send requests to it."""

    def __init__(self, hub: Hub, supervisor: EngineSupervisor, tokenizer: Tokenizer) -> None:
        super().__init__(hub, tokenizer, lambda: supervisor.facts)
        self.supervisor = supervisor

    async def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.supervisor.engine_pid is not None
        os.kill(self.supervisor.engine_pid, number)

    async def until(self, condition: Callable[[], bool], seconds: float = HANG_SECONDS) -> float:
        """Wait for the condition and return the seconds that it took."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < seconds, "the condition never became true"
            await asyncio.sleep(0.002)
        return time.monotonic() - started


def requests(count: int) -> list[Request]:
    return requests_of_every_kind(count, NUM_TOKENS)


def is_running(pid: int | None) -> bool:
    assert pid is not None
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


Serve = Callable[..., AbstractAsyncContextManager[Harness]]


@pytest.fixture
def serve(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`async with serve() as harness`; takes the module and the options of the engine."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    take_no_pause_for_a_fault(monkeypatch)
    tokenizer = Tokenizer(open_checkpoint(str(tiny_checkpoint)).text)

    @asynccontextmanager
    async def serve(
        *, wait: bool = True, module: str = "octavo.engine.process", **options: object
    ) -> AsyncIterator[Harness]:
        engine = {"model": str(tiny_checkpoint), "kv_memory": 1 << 23, "max_running": 32, **options}
        hub = Hub()
        supervisor = EngineSupervisor(EngineSettings(engine, log_level="warning"), hub, module=module)
        supervisor.start()
        try:
            if wait:
                await supervisor.wait_until_ready()
                assert supervisor.state is EngineState.READY, supervisor.failure
            yield Harness(hub, supervisor, tokenizer)
        finally:
            await supervisor.close()

    return serve


def run(test: Callable[[], Awaitable[None]], seconds: float = 4 * HANG_SECONDS) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), seconds)

    asyncio.run(bounded())


def test_streams_outlive_three_engines(serve: Serve) -> None:
    async def test() -> None:
        async with serve() as harness:
            plain = await harness.ask_all(requests(4))
            streams = asyncio.create_task(harness.ask_all(requests(4)))
            for number in range(3):
                harness.num_deltas = 0
                await harness.until(lambda: harness.num_deltas > 20)
                await harness.kill()
                await harness.until(lambda n=number: harness.supervisor.num_restarts == n + 1)  # type: ignore[misc]
            assert await streams == plain
            assert len(harness.hub) == 0

    run(test)


def kernels_of_engine(supervisor: EngineSupervisor) -> str | None:
    """Return the kernels in the settings of the current engine."""
    assert supervisor._engine is not None
    try:
        settings = (supervisor._engine.folder.path / "settings.json").read_bytes()
    except OSError:  # between two engines
        return None
    return str(json.loads(settings)["options"]["kernels"])


def test_streams_move_to_other_instruction_sets(serve: Serve) -> None:
    """Streams start on the best instruction set of this processor and continue on lesser ones."""
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    names = [isa.name.lower() for isa in reversed(KernelLibrary(path).isas)]
    if len(names) < 2:
        pytest.skip("this processor has one instruction set only")

    async def test() -> None:
        async with serve(dtype="bfloat16", kernels=names[0]) as harness:
            supervisor = harness.supervisor
            assert supervisor.facts is not None
            fingerprint = supervisor.facts.system_fingerprint
            plain = await harness.ask_all(requests(32))
            streams = asyncio.create_task(harness.ask_all(requests(32)))
            for number, name in enumerate(names[1:]):
                harness.num_deltas = 0
                await harness.until(lambda: harness.num_deltas > 2500)
                options = {**supervisor._settings.options, "kernels": name}
                supervisor._settings = msgspec.structs.replace(supervisor._settings, options=options)
                await harness.kill()
                await harness.until(lambda n=number: supervisor.num_restarts == n + 1)  # type: ignore[misc]
                await harness.until(lambda name=name: kernels_of_engine(supervisor) == name)  # type: ignore[misc]
            moved = await streams
            assert sum(one == other for one, other in zip(moved, plain, strict=True)) == 32
            assert supervisor.facts.system_fingerprint == fingerprint

    run(test)


def test_a_poisoned_request_ends_alone(serve: Serve) -> None:
    async def test() -> None:
        async with serve(module="engines") as harness:
            plain = await harness.ask_all(requests(8))
            poison = asyncio.create_task(harness.ask([*POISON, 70], SamplingParams(max_tokens=5)))
            streams = asyncio.create_task(harness.ask_all(requests(8)))  # they get no step before the poison
            ended = await poison
            assert ended.choices[0].finish_reason == "error"
            assert ended.choices[0].error == ENGINE_LOST.message
            assert await streams == plain
            assert harness.supervisor.num_restarts == MAX_REPLAYS + 1

    run(test)


@pytest.mark.parametrize("neighbours", [0, 8])
def test_a_request_that_hangs_the_engine_ends_alone(serve: Serve, neighbours: int) -> None:
    """It hangs every step that includes it: first with its neighbours, if any, then while isolated."""

    async def test() -> None:
        async with serve(module="engines") as harness:
            plain = await harness.ask_all(requests(neighbours))
            harness.num_deltas = 0
            streams = asyncio.create_task(harness.ask_all(requests(neighbours)))
            await harness.until(lambda: harness.num_deltas > 20 or not neighbours)
            ended = await harness.ask([70, HANG, 70], SamplingParams(max_tokens=5, n=2))
            assert {choice.finish_reason for choice in ended.choices} == {"error"}
            assert {choice.error for choice in ended.choices} == {ENGINE_HUNG.message}
            assert await streams == plain
            await harness.ask("and all is well", SamplingParams(max_tokens=3))
            assert harness.supervisor.num_restarts == 2

    run(test)


def test_a_faulty_request_ends_alone_and_the_engine_survives(serve: Serve) -> None:
    """Test error isolation in a real engine process; unit/engine/test_boundary.py covers all sites."""

    async def test() -> None:
        async with serve(module="engines") as harness:
            plain, pid = await harness.ask_all(requests(8)), harness.supervisor.engine_pid
            harness.num_deltas = 0
            streams = asyncio.create_task(harness.ask_all(requests(8)))
            for number in range(3):
                seen = 100 * number
                await harness.until(lambda seen=seen: harness.num_deltas > seen)  # type: ignore[misc]
                ended = await harness.ask([70, FAULT, 70], SamplingParams(max_tokens=5))
                assert ended.choices[0].finish_reason == "error"
                assert ended.choices[0].error == STEP_FAILED.message
            assert await streams == plain
            assert harness.supervisor.engine_pid == pid
            assert harness.supervisor.num_restarts == 0
            stats = harness.supervisor.stats
            assert stats is not None
            assert stats.blocks_free + stats.blocks_idle == stats.blocks_total

    run(test)


def test_engine_death_while_idle_and_while_loading(serve: Serve) -> None:
    async def test() -> None:
        async with serve() as harness:
            plain = await harness.ask_all(requests(2))
            await harness.kill()  # idle
            await harness.until(lambda: harness.supervisor.state is EngineState.RESTARTING)
            streams = asyncio.create_task(harness.ask_all(requests(2)))
            late = asyncio.create_task(harness.ask("late", SamplingParams(max_tokens=3), timeout=0.1))
            await harness.until(
                lambda: (s := harness.supervisor.engine_heartbeat) is not None and s.phase is Phase.STARTING
            )
            await harness.kill()  # before it is ready
            assert (await late).choices[0].finish_reason == "deadline"
            state = harness.supervisor.state
            assert state is EngineState.RESTARTING, "the deadline did not wait for an engine"
            assert await streams == plain
            assert harness.supervisor.num_restarts == 2

    run(test)


def test_an_abort_does_not_wait_for_an_engine(serve: Serve) -> None:
    async def test() -> None:
        async with serve() as harness:
            await harness.kill()
            await harness.until(lambda: harness.supervisor.state is EngineState.RESTARTING)
            stream = asyncio.create_task(harness.ask("to be ended", SamplingParams(max_tokens=3)))
            await harness.until(lambda: len(harness.hub) == 1)
            harness.hub.abort("r1")
            assert (await stream).choices[0].finish_reason == "abort"
            assert harness.supervisor.state is EngineState.RESTARTING

    run(test)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"model": "/no/such/folder"}, "no/such/folder"), ({"kv_memory": 1}, "kv_memory")],
)
def test_an_engine_that_cannot_start_is_not_restarted(
    serve: Serve, options: dict[str, object], reason: str
) -> None:
    async def test() -> None:
        async with serve(wait=False, **options) as harness:
            await harness.supervisor.wait_until_ready()
            assert harness.supervisor.state is EngineState.FAILED
            assert harness.supervisor.failure is not None
            assert reason in harness.supervisor.failure
            assert harness.supervisor.num_restarts == 0
            assert not harness.supervisor.is_live

    run(test)


def test_an_engine_that_always_dies_fails_with_its_exit_code(serve: Serve) -> None:
    async def test() -> None:
        async with serve(wait=False, module="no_such_module") as harness:
            await harness.supervisor.wait_until_ready()
            assert harness.supervisor.state is EngineState.FAILED
            assert "it exited with code 1" in (harness.supervisor.failure or "")

    run(test)


def test_close_ends_in_flight_requests_and_leaves_no_files(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tempfile.mkdtemp(dir="/tmp")  # short enough for the path of a socket
    monkeypatch.setattr(tempfile, "tempdir", short)

    async def test() -> None:
        async with serve() as harness:
            assert os.listdir(short)
            stream = asyncio.create_task(harness.ask_all(requests(1)))
            await harness.until(lambda: harness.num_deltas > 3)
            pid = harness.supervisor.engine_pid
        ((_, ((*_, finish, _, error),)),) = await stream
        assert (finish, error) == ("error", "the server is shutting down")
        assert not is_running(pid)
        refused = await harness.ask("after the end", SamplingParams(max_tokens=3))
        assert refused.choices[0].finish_reason == "error"

    run(test)
    assert os.listdir(short) == []
    os.rmdir(short)


def test_a_killed_parent_leaves_no_engine(tiny_checkpoint: Path) -> None:
    code = """
import asyncio, sys, time
from octavo.checkpoint import open_checkpoint
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineSupervisor
from octavo.link.folder import EngineSettings
from octavo.text.tokenizer import Tokenizer

async def main():
    model = sys.argv[1]
    settings = EngineSettings({"model": model, "kv_memory": 1 << 22}, "error")
    Tokenizer(open_checkpoint(model).text)  # as a server does
    supervisor = EngineSupervisor(settings, Hub())
    supervisor.start()
    if sys.argv[2] == "ready":
        await supervisor.wait_until_ready()
    else:
        await asyncio.sleep(0.3)
    assert "torch" not in sys.modules
    print(supervisor.engine_pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    for moment in ("ready", "starting"):
        parent = subprocess.Popen(
            [sys.executable, "-c", code, str(tiny_checkpoint), moment], stdout=subprocess.PIPE, text=True
        )
        try:
            assert parent.stdout is not None
            engine = int(parent.stdout.readline())
            assert is_running(engine)
        finally:
            parent.kill()
            parent.wait()
        deadline = time.monotonic() + HANG_SECONDS
        while is_running(engine):
            assert time.monotonic() < deadline, f"an engine outlived its parent ({moment})"
            time.sleep(0.02)
