"""Two machines with two replicas each, and two front ends, while links fail and processes die or hang.

    python tests/chaos/network.py MODEL [--streams 1000] [--events 50] [--seed 0]

Needs root. Each machine is a network namespace. Each front end has a link of its own to each machine, so that
one front end may lose a machine that the other one reaches. Every answer must be the same as without a
disturbance, bit for bit. When a front end is killed, its clients ask again at the other one.

    front end 0 ----- veth -----+------- machine 0: m0r0 (direct), m0r1 (through a proxy that can delay bytes)
    front end 1 ----- veth -----+
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.machines import (
    FRONT_ENDS,
    MACHINES,
    DelayProxy,
    FrontEndProgram,
    Network,
    Program,
    marked_processes,
    run_command,
)
from data.json_types import Json, JsonObject
from load.requests import chat, completion
from load.wire import CHAT, COMPLETIONS, Connection
from patience import HANG_SECONDS

logger = logging.getLogger(__name__)

REPLICAS = (0, 1)  # of each machine
PORT = 7000  # of the first replica of a machine
KINDS = (
    "link down",
    "silent cut",  # packets are dropped: no connection is reset
    "packet loss",
    "delay",
    "kill engine",
    "kill agent",
    "stop engine",
    "stop agent",
    "drain agent",
    "kill front end",
)
# Before a fault is healed. A silent replica is suspected after 2.5 s, lost after 6; a front end after 10.
SECONDS = (1.0, 3.0, 5.0, 8.0, 12.0)
DELAYS = (0.1, 0.5, 2.0, 4.0)
LONG_PAUSE = 8.0  # seconds, that are logged
NUM_DIFFERENT = 35  # requests; the streams repeat them

Received = tuple[str, ...]  # the reproducible contents of a stream


@dataclass
class NetworkReport:
    num_streams: int = 0
    num_lost: int = 0
    num_different: int = 0
    num_asked_again: int = 0  # their front end was killed
    num_moves: int = 0
    max_pause: float = 0.0  # seconds between two events of one stream
    events: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        events = ", ".join(f"{number} x {event}" for event, number in sorted(self.events.items()))
        figures = (
            f"{self.num_streams} streams, {self.num_lost} lost, {self.num_different} different,"
            f" {self.num_asked_again} asked again at the other front end, {self.num_moves} moves,"
            f" longest pause {self.max_pause:.1f} s; {events}"
        )
        return "\n".join([figures, *self.problems])


class TimedConnection(Connection):
    """Reports the time between two events of a stream. Pings are not events."""

    report: NetworkReport
    _last: float | None = None

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if b"data: " in body:
            now = time.monotonic()
            pause, self._last = now - (self._last or now), now
            self.report.max_pause = max(self.report.max_pause, pause)
            if pause > LONG_PAUSE:
                logger.info(
                    "a stream of port %d paused for %.1f s",
                    self.transport.get_extra_info("peername")[1],
                    pause,
                )


def requests_over_http(tokens: int) -> list[tuple[str, JsonObject]]:
    """Return paths and bodies of requests: greedy, sampled, with logprobs, stop strings or a schema."""
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 30, "maxItems": 60}
    kinds: list[JsonObject] = [
        {},
        {"n": 2},
        {"temperature": 2.0, "stop": ["ab", "Zx"]},
        {},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": schema}}},
    ]
    requests: list[tuple[str, JsonObject]] = []
    for number in range(NUM_DIFFERENT):
        more = kinds[number % len(kinds)] | {"stream": True, "stream_options": {"include_usage": True}}
        if "response_format" in more:
            requests.append((CHAT, chat(number, tokens, **more) | {"ignore_eos": False}))
        else:
            requests.append((COMPLETIONS, completion(number, tokens, **more)))
    return requests


def received(body: bytes) -> Received:
    """Join the pieces of each choice in order of arrival: a lost, repeated or misplaced piece is noticed."""
    choices: dict[int, dict[str, list[Json]]] = {}
    usage, num_ends = None, 0
    for event in body.split(b"\n\n"):
        if event == b"data: [DONE]":
            num_ends += 1
        elif event.startswith(b"data: "):
            chunk = json.loads(event[6:])
            if "error" in chunk:
                raise ConnectionError(f"the stream ended with {chunk['error']}")
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                _append(choices.setdefault(choice["index"], {}), choice)
    if usage is None or num_ends != 1:
        raise ConnectionError("the stream did not end exactly once")
    numbers = [usage["prompt_tokens"], usage["completion_tokens"]]
    return (*(json.dumps(pieces) for _, pieces in sorted(choices.items())), json.dumps(numbers))


def _append(pieces: dict[str, list[Json]], choice: Json) -> None:
    text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    pieces.setdefault("text", [""])[0] += text
    pieces.setdefault("token_ids", []).extend(choice.get("token_ids") or [])
    for name, values in (choice.get("logprobs") or {}).items():
        pieces.setdefault(name, []).extend(values or [])
    if choice["finish_reason"] is not None:
        pieces.setdefault("finish_reasons", []).append(choice["finish_reason"])


class NetworkFleet:
    """Everything that runs, and what may happen to it."""

    def __init__(self, model: str, folder: Path, seed: int) -> None:
        self.report = NetworkReport()
        self.front_ends: list[FrontEndProgram] = []
        self.agents: dict[str, Program] = {}  # by the name of the replica
        self.rng = random.Random(seed)
        self.fault_seconds: tuple[float, ...] = SECONDS
        self._network = Network()
        self._model = model
        self._folder = folder
        self._proxies: dict[tuple[int, int], DelayProxy] = {}  # by front end and machine
        self._disturbed: set[str] = set()  # names of replicas and front ends

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all programs, and yield when all replicas are ready at all front ends."""
        run_command(f"{sys.executable} -m octavo.cli.main fleet keys {self._folder / 'keys'}")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._network.running())
            stack.callback(self._kill_all)
            for machine in MACHINES:
                for number in REPLICAS:
                    self._start_agent(machine, number)
            for number in FRONT_ENDS:
                await self._start_front_end(number, stack)
            for front_end in self.front_ends:
                await front_end.until_up()
            await self.until_idle()
            yield

    def _start_agent(self, machine: int, number: int) -> None:
        name = f"m{machine}r{number}"
        prefix = f"ip netns exec {self._network.namespace(machine)}"
        arguments = ["replica", self._model, "--replica-name", name, "--listen", f"0.0.0.0:{PORT + number}"]
        arguments += ["--fleet-key", str(self._folder / "keys/replica.key"), "--log-format", "json"]
        arguments += ["--kv-memory", "8MiB", "--max-running", "32", "--threads", "1"]
        self.agents[name] = Program(name, self._folder, prefix, arguments)

    async def _start_front_end(self, number: int, stack: contextlib.ExitStack) -> None:
        addresses: list[str] = []
        for machine in MACHINES:
            host = self._network.address(number, machine)
            proxy = self._proxies[number, machine] = DelayProxy(host, PORT + 1)
            server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
            stack.callback(server.close)
            addresses += [f"{host}:{PORT}", f"127.0.0.1:{server.sockets[0].getsockname()[1]}"]
        arguments = [self._model, "--fleet", ",".join(addresses), "--log-format", "json"]
        arguments += ["--fleet-key", str(self._folder / "keys/front-end.key")]
        self.front_ends.append(FrontEndProgram(f"front-end-{number}", self._folder, arguments))

    @property
    def _programs(self) -> list[Program]:
        return [*self.front_ends, *self.agents.values()]

    def _kill_all(self) -> None:
        """End all processes of this run. Engines must end with their agent, and not need this."""
        for program in self._programs:
            program.process.kill()
            program.process.wait()
        until = time.monotonic() + HANG_SECONDS / 10
        while (pids := list(marked_processes())) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in pids:
            self.report.problems.append(f"process {pid} has outlived its agent or front end")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def until_idle(self) -> None:
        """Wait until all replicas are ready at all front ends, without requests."""
        async with asyncio.timeout(HANG_SECONDS):
            for front_end in self.front_ends:
                while not await self._is_idle(front_end):
                    await asyncio.sleep(0.2)

    async def _is_idle(self, front_end: FrontEndProgram) -> bool:
        status = await front_end.status()
        states = [(one["state"], one["running"], one["waiting"]) for one in status["replicas"]]
        return states == [("ready", 0, 0)] * len(self.agents) and status["requests"] == 0

    async def shut_down(self) -> None:
        """End all programs as an operator does, and note what they logged."""
        for front_end in self.front_ends:
            self.report.num_moves += (await front_end.status())["moves"]
        for program in self._programs:
            code = await program.end(signal.SIGTERM)
            if code != 0:
                self.report.problems.append(f"{program.name} ended with exit code {code}")
        for program in self._programs:
            self.report.problems += program.problems()

    # -- streams -------------------------------------------------------------------------------------------

    async def ask(self, number: int, path: str, body: JsonObject) -> Received | None:
        """Return what was received; None if the stream was lost."""
        while True:
            living = [one for one in self.front_ends if one.is_up]
            front_end = living[number % len(living)]
            deaths = front_end.num_deaths
            try:
                return await self._ask_at(front_end, path, body)
            except (OSError, ValueError) as error:
                if front_end.num_deaths == deaths:
                    self.report.problems.append(f"stream {number} at {front_end.name}: {error!r}")
                    return None
                self.report.num_asked_again += 1

    async def _ask_at(self, front_end: FrontEndProgram, path: str, body: JsonObject) -> Received:
        connection = await TimedConnection.open(front_end.port)
        assert isinstance(connection, TimedConnection)
        connection.report = self.report
        try:
            connection.send(path, body)
            answer = await connection.done()
        finally:
            connection.disconnect()
        if answer.status != 200:
            raise ConnectionError(f"status {answer.status}: {bytes(answer.body[:300])!r}")
        return received(bytes(answer.body))

    # -- disturbances --------------------------------------------------------------------------------------

    async def disturb(self, kind: str) -> Coroutine[None, None, None]:
        """Return a disturbance as soon as it leaves a replica to each front end. It heals what it breaks."""
        machine = self.rng.choice(MACHINES)
        names = {f"m{machine}r{number}" for number in REPLICAS}
        if kind == "delay":
            names = {f"m{machine}r1"}
        elif "engine" in kind or "agent" in kind:
            names = {self.rng.choice(sorted(names))}
        elif kind == "kill front end":
            names = {self.rng.choice(self.front_ends).name}
        async with asyncio.timeout(HANG_SECONDS):
            while not await self._is_safe(names):
                await asyncio.sleep(0.1)
        self._disturbed |= names
        self.report.events[kind] += 1
        return self._disturb(kind, machine, names)

    async def _is_safe(self, names: set[str]) -> bool:
        away = names | self._disturbed
        living = [one for one in self.front_ends if one.name not in away]
        if names & self._disturbed or not living:
            return False
        return all([one.is_up and await one.ready() - away for one in living])

    async def _disturb(self, kind: str, machine: int, names: set[str]) -> None:
        seconds, name = self.rng.choice(self.fault_seconds), min(names)
        logger.info("%s: %s, %.0f s", kind, ", ".join(sorted(names)), seconds)
        if kind == "kill front end":
            await self._kill_front_end(name, seconds)
        elif "agent" in kind:
            await self._disturb_agent(kind, self.agents[name], seconds)
        elif "engine" in kind:
            await self._disturb_engine(kind, self.agents[name], seconds)
        else:
            await self._disturb_links(kind, machine, seconds)
        await asyncio.sleep(0.5)  # until front ends know what has happened
        self._disturbed -= names

    async def _kill_front_end(self, name: str, seconds: float) -> None:
        front_end = next(one for one in self.front_ends if one.name == name)
        self.report.num_moves += (await front_end.status())["moves"]
        front_end.is_up = False
        front_end.num_deaths += 1
        await front_end.end(signal.SIGKILL)
        await asyncio.sleep(seconds)
        front_end.start()
        await front_end.until_up()

    async def _disturb_agent(self, kind: str, agent: Program, seconds: float) -> None:
        if kind == "stop agent":
            agent.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            agent.process.send_signal(signal.SIGCONT)
            return
        code = await agent.end(signal.SIGKILL if kind == "kill agent" else signal.SIGTERM)
        if code not in (0, -signal.SIGKILL):
            self.report.problems.append(f"{agent.name} ended with exit code {code} after SIGTERM")
        agent.start()

    async def _disturb_engine(self, kind: str, agent: Program, seconds: float) -> None:
        while (pid := agent.engine_pid) is None:
            await asyncio.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):  # a stopped engine is killed after 6 s
            os.kill(pid, signal.SIGKILL if kind == "kill engine" else signal.SIGSTOP)
            if kind == "stop engine":
                await asyncio.sleep(seconds)
                os.kill(pid, signal.SIGCONT)

    async def _disturb_links(self, kind: str, machine: int, seconds: float) -> None:
        """Disturb the links of a machine to one front end, or to both, in one direction or both."""
        numbers = self.rng.choice([(0,), (1,), (0, 1)])
        sides = self.rng.choice([("INPUT -i",), ("OUTPUT -o",), ("INPUT -i", "OUTPUT -o")])
        delay, lost = self.rng.choice(DELAYS), self.rng.uniform(0.2, 0.4)
        inside = f"ip netns exec {self._network.namespace(machine)}"
        if kind == "delay":
            for number in numbers:
                self._proxies[number, machine].delay = delay
            await asyncio.sleep(seconds)
            for number in numbers:
                self._proxies[number, machine].delay = 0.0
        elif kind == "link down":
            commands = [f"{inside} ip link set f{number}" for number in numbers]
            await run_and_undo(
                [f"{one} down" for one in commands], [f"{one} up" for one in commands], seconds
            )
        else:
            part = f"-m statistic --mode random --probability {lost:.2f}" if kind == "packet loss" else ""
            rules = [f"{side} f{number} {part} -j DROP" for number in numbers for side in sides]
            add, delete = ([f"{inside} iptables -w {verb} {rule}" for rule in rules] for verb in ("-A", "-D"))
            await run_and_undo(add, delete, seconds)


async def run_and_undo(commands: list[str], undo: list[str], seconds: float) -> None:
    for command in commands:
        run_command(command)
    await asyncio.sleep(seconds)
    for command in undo:
        run_command(command)


async def endure(fleet: NetworkFleet, *, streams: int, events: int, at_once: int, tokens: int) -> None:
    """Run at least `streams` streams, and as many more as it takes until all events have happened."""
    requests = requests_over_http(tokens)
    expected = await asyncio.gather(*(fleet.ask(0, *request) for request in requests))
    assert None not in expected, fleet.report
    report, room = fleet.report, asyncio.Semaphore(at_once)
    report.max_pause = 0.0
    disturbing = asyncio.create_task(_disturb_often(fleet, events, streams / events))

    async def stream(number: int) -> None:
        answer = await fleet.ask(number, *requests[number % NUM_DIFFERENT])
        report.num_lost += answer is None
        report.num_different += answer is not None and answer != expected[number % NUM_DIFFERENT]
        room.release()

    async with asyncio.TaskGroup() as group:
        while report.num_streams < streams or not disturbing.done():
            await room.acquire()
            group.create_task(stream(report.num_streams))
            report.num_streams += 1
    await disturbing


async def _disturb_often(fleet: NetworkFleet, events: int, streams_between: float) -> None:
    kinds: list[str] = []
    async with asyncio.TaskGroup() as group:
        for number in range(events):
            while fleet.report.num_streams < number * streams_between:
                await asyncio.sleep(0.05)
            kinds = kinds or fleet.rng.sample(KINDS, len(KINDS))
            group.create_task(await fleet.disturb(kinds.pop()))


async def run_chaos(
    model: str,
    *,
    streams: int,
    events: int,
    at_once: int,
    tokens: int,
    seed: int = 0,
    fault_seconds: tuple[float, ...] = SECONDS,
) -> NetworkReport:
    folder = Path(tempfile.mkdtemp(prefix="oc", dir="/tmp"))  # short: there are sockets in it
    fleet = NetworkFleet(model, folder, seed)
    fleet.fault_seconds = fault_seconds
    try:
        async with fleet.running():
            await endure(fleet, streams=streams, events=events, at_once=at_once, tokens=tokens)
            await fleet.until_idle()
            await fleet.shut_down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return fleet.report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    report = asyncio.run(run_chaos(arguments.pop("model"), **arguments))
    print(f"{report}\n{time.monotonic() - started:.0f} s")
    return 1 if report.num_lost or report.num_different or report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
