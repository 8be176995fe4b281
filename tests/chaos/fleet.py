"""A fleet that is disturbed while it answers: engines are killed, stopped and drained, links are cut.

    python tests/chaos/fleet.py MODEL [--replicas 4] [--streams 10000] [--events 200] [--seed 0]

Every answer must be the same as without a disturbance, bit for bit.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.asking import Asker, Outcome, Request, requests_of_every_kind
from octavo.checkpoint import open_checkpoint
from octavo.fleet.router import Router
from octavo.frontend.audits import Audits
from octavo.frontend.drain_replica import LONELY_SECONDS
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineSupervisor
from octavo.link.folder import EngineSettings
from octavo.membership.local import LocalReplicas
from octavo.text.tokenizer import Tokenizer
from patience import HANG_SECONDS

EVENTS = ("kill", "stop", "cut", "drain")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
NUM_DIFFERENT = 35  # requests; the streams repeat them
NUM_AT_ONCE = 64


@dataclass
class Report:
    num_streams: int = 0
    num_wrong: int = 0  # lost, or different from the undisturbed answer
    num_moves: int = 0
    max_pause: float = 0.0  # seconds between two updates of one stream
    events: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        events = ", ".join(f"{number} x {event}" for event, number in self.events.items())
        return (
            f"{self.num_streams} streams, {self.num_wrong} lost or different, {self.num_moves} moves,"
            f" longest pause {self.max_pause:.1f} s; {events}"
        )


class Fleet:
    def __init__(self, replicas: LocalReplicas, asker: Asker) -> None:
        self.replicas = replicas
        self.asker = asker
        self.hub = asker.hub
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def usable(self) -> list[EngineSupervisor]:
        return [one for one in self.replicas.supervisors if one.is_usable]

    async def until_usable(self, number: int) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while len(self.usable) < number:
                await asyncio.sleep(0.01)

    async def disturb(self, event: str, replica: EngineSupervisor) -> None:
        pid = replica.engine_pid
        assert pid is not None
        if event in SIGNALS:
            with suppress(ProcessLookupError):  # it was killed a moment ago
                os.kill(pid, SIGNALS[event])
        elif event == "cut":
            # The channel does not notice: messages in both directions are lost.
            channel, engine = replica._channel, replica._engine
            assert channel is not None
            assert engine is not None
            with suppress(zmq.ZMQError):  # it was cut a moment ago
                channel._socket.disconnect(engine.folder.address)
        else:
            drain = asyncio.create_task(
                replica.replace(partial(self.replicas._drain, replica, LONELY_SECONDS))
            )
            self._tasks.add(drain)
            drain.add_done_callback(self._tasks.discard)


@asynccontextmanager
async def running_fleet(
    model: str, num_replicas: int, *, audit: float = 0.0, corrupt: str = "", **options: object
) -> AsyncIterator[Fleet]:
    """Start a fleet, and yield it when all replicas are ready. The engine of `corrupt` has a flipped bit."""
    hub, tokenizer = Hub(Router.with_prefixes(), Audits(audit)), Tokenizer(open_checkpoint(model).text)
    settings = EngineSettings({"model": model, **options}, log_level="error", num_engines=num_replicas)
    replicas = LocalReplicas(settings, hub, num_replicas=num_replicas)
    if corrupt:
        replicas.find(corrupt)._module = "corrupt_engine"
    replicas.start()
    try:
        fleet = Fleet(replicas, Asker(hub, tokenizer, lambda: replicas.facts))
        await fleet.until_usable(num_replicas)
        yield fleet
    finally:
        await replicas.close()


async def endure(fleet: Fleet, *, streams: int, events: int, num_tokens: int, seed: int = 0) -> Report:
    """Run at least `streams` streams, and as many more as it takes until all events have happened."""
    requests = requests_of_every_kind(NUM_DIFFERENT, num_tokens)
    expected = await fleet.asker.ask_all(requests)
    fleet.asker.max_pause, moves_before = 0.0, fleet.hub.num_moves
    report, is_over, room = Report(), asyncio.Event(), asyncio.Semaphore(NUM_AT_ONCE)
    disturbing = asyncio.create_task(_disturb(fleet, events, report, random.Random(seed)))
    disturbing.add_done_callback(lambda _: is_over.set())

    async def stream(request: Request, right: Outcome) -> None:
        (received,) = await fleet.asker.ask_all([request])
        report.num_wrong += received != right
        room.release()

    tasks: list[asyncio.Task[None]] = []
    while len(tasks) < streams or not is_over.is_set():
        await room.acquire()
        number = len(tasks) % NUM_DIFFERENT
        tasks.append(asyncio.create_task(stream(requests[number], expected[number])))
    await disturbing
    await asyncio.wait_for(asyncio.gather(*tasks), HANG_SECONDS)
    report.num_streams, report.max_pause = len(tasks), fleet.asker.max_pause
    report.num_moves = fleet.hub.num_moves - moves_before
    return report


async def _disturb(fleet: Fleet, events: int, report: Report, rng: random.Random) -> None:
    for number in range(events):
        await fleet.until_usable(2)  # the last one is left alone, so that streams go on
        seen = fleet.asker.num_deltas
        event, replica = EVENTS[number % len(EVENTS)], rng.choice(fleet.usable)
        await fleet.disturb(event, replica)
        report.events[event] += 1
        while fleet.asker.num_deltas < seen + 500:
            await asyncio.sleep(0.01)


async def _main(args: argparse.Namespace) -> int:
    started = time.monotonic()
    async with running_fleet(args.model, args.replicas, max_running=args.max_running) as fleet:
        report = await endure(
            fleet, streams=args.streams, events=args.events, num_tokens=args.tokens, seed=args.seed
        )
    print(f"{report}; {time.monotonic() - started:.0f} s")
    return 1 if report.num_wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
