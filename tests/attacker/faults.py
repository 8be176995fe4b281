"""Faults of the machine: processes that are killed or stopped, and a disk that is full."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from attacker.attack import Actor, Attack
from attacker.contract import OK
from attacker.findings import Invariant
from attacker.processes import CHECKER, ENGINE, PROMPTER
from attacker.wire import get, post
from data.json_types import JsonObject

BETWEEN_FAULTS = 1.5  # seconds
POLL = 0.05  # seconds
MIN_READY_SECONDS = 60.0  # that the replicas of a fleet have after a fault
MAX_FILLER = 1 << 20  # bytes; the disk is smaller

Fault = Callable[[Actor], Awaitable[None]]


async def kill_engine(actor: Actor) -> None:
    """Kill the engine, and wait until the next one is ready."""
    attack = actor.attack
    delay = actor.random.uniform(0, 0.5)
    actor.act("kill engine", delay=round(delay, 3))
    await attack.pause(delay)
    fault = attack.faults.begin("engine")
    if signal_all(attack.server.children(ENGINE), signal.SIGKILL):
        attack.findings.counts["kills"] += 1
    await until_ready(attack)
    attack.faults.end(fault)


async def stop_engine(actor: Actor) -> None:
    """Stop the engine for less than the time after which it counts as hung, or for more."""
    attack = actor.attack
    seconds = actor.random.choice((0.1, 0.5, 2.0, 2.0, 10.0 if attack.settings.seconds > 100 else 1.0))
    actor.act("stop engine", seconds=seconds)
    fault = attack.faults.begin("engine")
    pids = attack.server.children(ENGINE)
    signal_all(pids, signal.SIGSTOP)
    await attack.pause(seconds)
    signal_all(pids, signal.SIGCONT)
    await until_ready(attack)
    attack.faults.end(fault)


async def kill_helper(actor: Actor) -> None:
    """Kill the prompt process, one of its workers, or the grammar check process."""
    attack, server = actor.attack, actor.attack.server
    name = actor.random.choice(("prompter", "worker", "checker"))
    actor.act("kill helper", name=name)
    pids = server.children(CHECKER if name == "checker" else PROMPTER)
    if name == "worker":
        pids = server.workers(PROMPTER)[:1]
    fault = attack.faults.begin(name)
    if signal_all(pids, signal.SIGKILL):
        attack.findings.counts["kills"] += 1
    if name != "checker":  # until the next process builds prompts
        request = post("/tokenize", attack.tenants.operator.key, {"prompt": "x"})
        await attack.exchange(request, [OK], "the first prompt after a kill of the prompt process")
    attack.faults.end(fault)


async def stop_helper(actor: Actor) -> None:
    attack, server = actor.attack, actor.attack.server
    name, seconds = actor.random.choice(("prompter", "worker", "checker")), actor.random.uniform(0.1, 1.5)
    actor.act("stop helper", name=name, seconds=round(seconds, 2))
    pids = server.children(CHECKER if name == "checker" else PROMPTER)
    if name == "worker":
        pids = server.workers(PROMPTER)
    fault = attack.faults.begin(name)
    signal_all(pids, signal.SIGSTOP)
    await attack.pause(seconds)
    signal_all(pids, signal.SIGCONT)
    attack.faults.end(fault)


async def fill_disk(actor: Actor) -> None:
    """Fill the temporary folder and kill the engine: the next one starts when there is room again."""
    seconds = actor.random.uniform(0.2, 1.0)
    actor.act("fill disk", seconds=round(seconds, 2))
    server = actor.attack.server
    await fill_disk_and_kill(actor, server.temporary_inside, server.children(ENGINE), seconds)


async def fill_disk_and_kill(actor: Actor, folder: Path, engines: list[int], seconds: float) -> None:
    attack = actor.attack
    fault = attack.faults.begin("disk")
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.tell() < MAX_FILLER:
            file.write(b"x" * 4096)
    if signal_all(engines, signal.SIGKILL):
        attack.findings.counts["kills"] += 1
    await attack.pause(seconds)
    filler.unlink(missing_ok=True)
    await until_ready(attack)
    attack.faults.end(fault)


FAULTS: tuple[tuple[Fault, int], ...] = (
    (kill_engine, 4),
    (stop_engine, 2),
    (kill_helper, 4),
    (stop_helper, 2),
)


async def cause_faults(attack: Attack, seconds: float, faults: Sequence[tuple[Fault, int]]) -> None:
    """Cause one fault after the other for about `seconds`. Later no fault hides a leak of the last engine."""
    actor = Actor(attack, "faults", attack.tenants.operator)
    # A fleet has more kinds than a short attack has faults: each comes once, before any comes twice.
    first = [one for one, _ in faults] if attack.server.agents else []
    ends_at, recovery = attack.findings.seconds + seconds, 0.0
    while attack.findings.seconds < ends_at:
        # At least as long as the last recovery, so that a slow engine has time to generate tokens.
        await attack.pause(max(BETWEEN_FAULTS * actor.random.uniform(0.5, 2), recovery))
        if attack.has_ended:
            return
        (chosen,) = actor.random.choices([one for one, _ in faults], [weight for _, weight in faults])
        began = attack.findings.seconds
        await (first.pop(0) if first else chosen)(actor)
        # The other replicas of a fleet generate tokens meanwhile.
        recovery = 0.0 if attack.server.agents else attack.findings.seconds - began


async def until_ready(attack: Attack) -> None:
    """Wait until the server, and each replica of a fleet, reports to be ready. A server's own patience ends
    before the attack's, but a fleet waits for a replica forever."""
    findings = attack.findings
    ends_at = findings.seconds + max(attack.settings.patience, MIN_READY_SECONDS)
    while not await _is_ready(attack):
        if attack.server.process.poll() is not None:
            return
        if attack.server.agents and findings.seconds > ends_at:
            findings.violate(Invariant.RETURNS_TO_BASELINE, "a replica is not ready again after a fault")
            return
        await asyncio.sleep(POLL)


async def _is_ready(attack: Attack) -> bool:
    with contextlib.suppress(OSError):
        async with attack.connected("readiness probe") as client:
            await client.send(get("/readyz", None))
            if not await client.replied() or client.replies[0].status != 200:
                return False
            if not attack.server.agents:
                return True
            await client.send(get("/octavo/fleet", attack.tenants.operator.key))
            if not await client.replied(2) or client.replies[1].status != 200:
                return False
            return _are_ready(attack, client.replies[1].json["replicas"])
    return False


def _are_ready(attack: Attack, replicas: list[JsonObject]) -> bool:
    """Return whether all replicas are ready with the engines that run now. The front end that reports them
    may not have noticed the last fault yet."""
    ready = {one["name"]: one["pid"] for one in replicas if one["state"] == "ready"}
    server = attack.server
    return all(ready.get(one.name) in server.children(ENGINE, one.process.pid) for one in server.agents)


def signal_all(pids: list[int], number: int) -> bool:
    """Send a signal; returns whether any process received it."""
    has_sent = False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            has_sent = True
    return has_sent
