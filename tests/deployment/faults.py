"""Scrapes of a server before, during and after real faults.

The application, the hub, the supervisors and the processes of the engines are real; the model computes
nothing. What would take minutes (slow prompts, little KV memory) or special hardware (wrong results) is
written into the objects that the metrics are collected from.
"""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from chaos.patient_supervision import take_no_pause_for_a_fault
from data.engine_facts import IDLE_STATS
from data.json_types import Json
from deployment.promtool import Scrape
from octavo.config import ServerOptions
from octavo.fairness.tenant import ONLY_TENANT
from octavo.fleet.router import Router
from octavo.frontend import engine_process
from octavo.frontend import supervisor as supervising
from octavo.frontend.engine_process import SUSPECTED_AFTER
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineSupervisor
from octavo.frontend.text_model import TextModel
from octavo.link.folder import EngineSettings
from octavo.membership.local import LocalReplicas
from octavo.membership.operations import AfterDrain
from octavo.observe.engine_tally import EngineTally
from octavo.prompting.jobs import Job, JobOutput
from octavo.server.app import build_app
from octavo.server.http.key_source import KeySource
from octavo.server.http.keys import Keys
from octavo.server.http.listener import OTHER_FILES
from octavo.server.state import ServerState
from octavo.status import OperationState, ReplicaState, ReplicaStatus
from patience import HANG_SECONDS
from server.direct_prompter import DirectPrompter
from server.exchange import Exchange

COMPLETIONS = "/v1/completions"
REPLICAS = ("r0", "r1", "r2")
ENGINE = {"vocab_size": 260, "step_seconds": 0.01, "max_running": 1}
CANNOT_START = EngineSettings({"max_running": "wrong"}, log_level="critical")
OPTIONS = ServerOptions(max_queued_requests=10, max_queued_tokens=100)
PROMPT_TOKENS = 10
KEY_FILE = "ops sk-operator-1 role=operator\nalice sk-alice-1\n"
ALICE = ((b"authorization", b"Bearer sk-alice-1"),)


@dataclass(frozen=True)
class Fault:
    """Scrapes before and after a fault, and one for each minute of it. The last of them may hold longer."""

    before: Scrape
    during: tuple[Scrape, ...]
    after: Scrape


class FaultyServer:
    """A server with three replicas, and its faults. All methods but `fail` leave it sound."""

    def __init__(self, model: TextModel, hub: Hub, replicas: LocalReplicas) -> None:
        self.hub, self.replicas = hub, replicas
        self.prompter = DirectPrompter(model)
        self.state = ServerState(OPTIONS, model, replicas, prompter=self.prompter)
        self.app = build_app(self.state, Keys())

    async def scrape(self) -> Scrape:
        return await self._scrape(Exchange(self.app, "/metrics", None))

    async def scrape_as_client(self, folder: Path) -> Scrape:
        """Prometheus uses a key that is not an operator's."""
        path = folder / "keys"
        path.write_text(KEY_FILE)
        app = build_app(self.state, Keys(KeySource(ServerOptions(api_key_file=str(path)))))
        try:
            return await self._scrape(Exchange(app, "/metrics", None, ALICE))
        finally:
            self.state.key_usage = None

    async def _scrape(self, asked: Exchange) -> Scrape:
        answer = await asked.done()
        assert answer.status == 200, answer.content
        return Scrape(answer.content.decode())

    def ask(self, max_tokens: int = 1) -> Exchange:
        body: Json = {"prompt": "x" * PROMPT_TOKENS, "max_tokens": max_tokens}
        return Exchange(self.app, COMPLETIONS, body)

    async def answer(self) -> int:
        return (await self.ask().done()).status

    # -- engines -----------------------------------------------------------------------------------------

    async def kill(self, *names: str) -> None:
        """kill -9 of engines; new ones start."""
        num_restarts = self.replicas.num_restarts
        for name in names:
            self.signal(name, signal.SIGKILL)
        await self.until(lambda: self.replicas.num_restarts == num_restarts + len(names))
        await self.until_ready(*(one.name for one in self.replicas.supervisors))

    async def stall(self, name: str) -> None:
        """Stop an engine until it is suspected."""
        num_suspicions = self.status(name).suspicions
        self.signal(name, signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_process, "SUSPECTED_AFTER", SUSPECTED_AFTER)
            await self.until(lambda: self.status(name).suspicions > num_suspicions)
        self.signal(name, signal.SIGCONT)
        await self.until_ready(*(one.name for one in self.replicas.supervisors))

    @contextlib.asynccontextmanager
    async def lost(self, *names: str) -> AsyncIterator[None]:
        """Kill engines whose next ones cannot start."""
        right = {name: self.supervisor(name)._settings for name in names}
        for name in names:
            self.supervisor(name)._settings = CANNOT_START
            self.signal(name, signal.SIGKILL)
        await self.until(lambda: all(self.status(name).state != ReplicaState.READY for name in names))
        try:
            yield
        finally:
            for name in names:
                self.supervisor(name)._settings = right[name]
        await self.until_ready(*names)

    async def start_in_vain(self, name: str, times: int) -> None:
        """Wait until engines of a replica that is lost have failed to start."""
        supervisor = self.supervisor(name)
        num_restarts = supervisor.num_restarts
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervising, "MAX_DELAY", 0.01)
            await self.until(lambda: supervisor.num_restarts >= num_restarts + times)

    async def fail(self, name: str) -> None:
        """Lose an engine, and give up at once."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(supervising, "MAX_FAILED_SECONDS", 0.0)
            self.supervisor(name)._settings = CANNOT_START
            self.signal(name, signal.SIGKILL)
            await self.until(lambda: self.status(name).state == ReplicaState.FAILED)

    async def operate(self, command: Callable[[], object]) -> None:
        """Run a command of the operator."""
        command()
        is_open = (OperationState.QUEUED, OperationState.RUNNING)
        await self.until(lambda: self.state.operations.status()[-1].state not in is_open)
        assert self.state.operations.status()[-1].state == OperationState.DONE

    def supervisor(self, name: str) -> EngineSupervisor:
        return self.replicas.find(name)

    def status(self, name: str) -> ReplicaStatus:
        return next(one for one in self.replicas.status() if one.name == name)

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = self.supervisor(name).engine_pid
        if pid is not None:
            os.kill(pid, number)

    async def until_ready(self, *names: str) -> None:
        await self.until(lambda: all(self.status(name).state == ReplicaState.READY for name in names))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not condition():
                await asyncio.sleep(0.002)

    # -- requests ----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def full_queue(self) -> AsyncIterator[None]:
        """Engines compute one long answer each, and nine requests wait. The limits are 10, and 100 tokens."""
        asked: list[Exchange] = []

        def is_settled() -> bool:
            num_begun = len(asked) - self.state.admission.num_sequences
            busy = [one for one in self.replicas.supervisors if self.hub.request_ids(one.name)]
            return len(self.hub) == len(asked) and num_begun == len(busy)

        while self.state.admission.num_sequences < 9:
            asked.append(self.ask(max_tokens=8000))
            await self.until(is_settled)
        try:
            yield
        finally:
            for one in asked:
                one.disconnect()
                await one.done()

    async def step(self) -> None:
        """Wait for a step of an engine."""
        steps = self.replicas.totals.counts.steps
        await self.until(lambda: self.replicas.totals.counts.steps > steps)

    @contextlib.contextmanager
    def failing_prompts(self) -> Iterator[None]:
        """A bug: prompts cannot be built."""

        async def run(tenant: object, job: Job) -> JobOutput:
            raise RuntimeError("a bug")

        right = self.prompter.run
        self.prompter.run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.prompter.run = right  # type: ignore[method-assign]

    @contextlib.contextmanager
    def waiting_request(self) -> Iterator[None]:
        """A request that is in the queue, but not at any engine."""
        self.state.admission.enter(ONLY_TENANT, 1, PROMPT_TOKENS)
        yield
        self.state.admission.leave(ONLY_TENANT, 1, PROMPT_TOKENS)

    def preempt(self, times: int) -> None:
        """Count preemptions of the first replica."""
        counted = EngineTally()
        counted.engine_ready(IDLE_STATS)
        counted.note(msgspec.structs.replace(IDLE_STATS, preemptions=times))
        self.supervisor("r0").tally.absorb(counted)

    @contextlib.contextmanager
    def fingerprint(self, value: str) -> Iterator[None]:
        """The same model with other numbers."""
        supervisor = self.supervisor("r0")
        right = supervisor.facts
        assert right is not None
        supervisor.facts = msgspec.structs.replace(right, system_fingerprint=value)
        yield
        supervisor.facts = right

    @contextlib.contextmanager
    def few_files(self) -> Iterator[None]:
        """The limit of open files leaves hardly any for connections."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        num_open = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (OTHER_FILES + num_open, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def minutes(self, count: int, happen: Callable[[], Awaitable[object]]) -> tuple[Scrape, ...]:
        """Return one scrape after each time that something happens."""
        scrapes = []
        for _ in range(count):
            await happen()
            scrapes.append(await self.scrape())
        return tuple(scrapes)


@contextlib.asynccontextmanager
async def faulty_server(model: TextModel) -> AsyncIterator[FaultyServer]:
    """A server whose engines the caller starts. However slow the machine is, engines are not replaced for
    that reason, and suspected only in `stall`."""
    hub = Hub(Router.with_prefixes())
    settings = EngineSettings(ENGINE, log_level="critical")
    module = "octavo.simulate.null_engine"
    replicas = LocalReplicas(settings, hub, num_replicas=len(REPLICAS), module=module)
    server = FaultyServer(model, hub, replicas)
    with pytest.MonkeyPatch.context() as patch:
        take_no_pause_for_a_fault(patch)
        try:
            yield server
        finally:
            await server.state.operations.close()
            await replicas.close()
            server.state.close()


async def record_faults(server: FaultyServer, folder: Path) -> dict[str, Fault]:
    """Return what Prometheus would see of each fault. The server ends with two replicas."""
    loading = await server.scrape()
    server.replicas.start()
    await server.until_ready(*REPLICAS)
    assert await server.answer() == 200
    sound = await server.scrape()
    client = await server.scrape_as_client(folder)
    with server.few_files():
        few_files = await server.scrape()
    with server.fingerprint("another"):
        another = await server.scrape()
    after = await server.scrape()
    return {
        "loading": Fault(loading, (loading,), sound),
        "client key": Fault(sound, (client,), after),
        "few files": Fault(sound, (few_files,), after),
        "another fingerprint": Fault(sound, (another,), after),
        **await _of_requests(server),
        **await _of_engines(server),
    }


async def _of_requests(server: FaultyServer) -> dict[str, Fault]:
    metrics, audits = server.state.metrics, server.hub.audit_counts

    async def answer_and(*changes: Callable[[], object]) -> None:
        assert await server.answer() == 200
        for change in changes:
            change()

    async def fail_requests() -> None:
        with server.failing_prompts():
            assert [await server.answer() for _ in range(6)] == [500] * 6

    def end_with_errors() -> None:
        metrics.finished["error"] += 6

    def answer_slowly() -> None:
        for _ in range(5):
            metrics.time_to_first_token.observe(30.0)

    found = {}
    for name, count, happen in (
        ("server errors", 12, fail_requests),
        ("failed sequences", 12, lambda: answer_and(end_with_errors)),
        ("slow", 25, lambda: answer_and(answer_slowly)),
        ("preempted", 35, lambda: answer_and(lambda: server.preempt(5))),
        ("one failed sequence", 1, lambda: answer_and(lambda: metrics.finished.update(error=1))),
    ):
        before = await server.scrape()
        during = await server.minutes(count, happen)
        found[name] = Fault(before, during, during[-1])
    before = await server.scrape()
    async with server.full_queue():
        during = await server.minutes(15, server.step)
    found["full queue"] = Fault(before, during, await server.scrape())
    before = await server.scrape()
    with server.waiting_request():
        waiting = await server.scrape()
    after = await server.scrape()
    found["no progress"] = Fault(before, (waiting,), after)
    audits.num_wrong["r1"] += 1
    wrong = await server.scrape()
    return found | {"wrong result": Fault(after, (wrong,), wrong)}


async def _of_engines(server: FaultyServer) -> dict[str, Fault]:
    sound = await server.scrape()
    await server.operate(lambda: server.state.operations.drain("r0", AfterDrain.RESTART))
    restarted = await server.scrape()
    await server.kill("r0")
    killed = await server.scrape()
    await server.kill("r1", "r2")
    await server.kill("r0", "r1")
    killed_often = await server.scrape()
    stalls = await server.minutes(3, lambda: server.stall("r1"))
    async with server.lost(*REPLICAS):
        lost = await server.scrape()
    found = await server.scrape()
    async with server.lost("r2"):
        await server.start_in_vain("r2", 6)
        one_lost = await server.scrape()
    ready = await server.scrape()
    await server.fail("r2")
    failed = await server.scrape()
    await server.operate(lambda: server.state.operations.drain("r2", AfterDrain.REMOVE))
    removed = await server.scrape()
    return {
        "restarted by the operator": Fault(sound, (restarted,), restarted),
        "killed": Fault(restarted, (killed,), killed),
        "killed often": Fault(restarted, (killed_often,), killed_often),
        "stalled": Fault(killed_often, stalls[:1], stalls[0]),
        "stalled often": Fault(killed_often, stalls, stalls[-1]),
        "lost": Fault(stalls[-1], (lost,), found),
        "one lost": Fault(found, (one_lost,), ready),
        "failed": Fault(ready, (failed,), removed),
    }
