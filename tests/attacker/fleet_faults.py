"""Faults of a fleet: one machine at a time loses its engine or its agent, stops or is drained."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator

from attacker.agents import AttackedAgent
from attacker.attack import Actor
from attacker.faults import (
    Fault,
    fill_disk_and_kill,
    kill_helper,
    signal_all,
    stop_helper,
    until_ready,
)
from attacker.findings import Invariant
from attacker.processes import ENGINE

# A silent replica is suspected after 2.5 s, and lost after 6 s.
STOP_SECONDS = (0.5, 3.0, 3.0, 8.0)
POLL = 0.05


async def kill_engine_of_agent(actor: Actor) -> None:
    """Kill an engine, whose agent starts the next one."""
    with _disturbed(actor, "kill engine") as agent:
        fault = actor.attack.faults.begin("engine")
        _kill(actor, actor.attack.server.children(ENGINE, agent.process.pid))
        await until_ready(actor.attack)
        actor.attack.faults.end(fault)


async def stop_engine_of_agent(actor: Actor) -> None:
    seconds = actor.random.choice(STOP_SECONDS)
    with _disturbed(actor, "stop engine", seconds=seconds) as agent:
        fault = actor.attack.faults.begin("engine")
        pids = actor.attack.server.children(ENGINE, agent.process.pid)
        signal_all(pids, signal.SIGSTOP)
        await actor.attack.pause(seconds)
        signal_all(pids, signal.SIGCONT)
        await until_ready(actor.attack)
        actor.attack.faults.end(fault)


async def kill_agent(actor: Actor) -> None:
    """Kill an agent. Its engine must end too; then another agent is started at the same address."""
    attack = actor.attack
    with _disturbed(actor, "kill agent") as agent:
        fault = attack.faults.begin("agent")
        engines = attack.server.children(ENGINE, agent.process.pid)
        await agent.end(signal.SIGKILL)
        attack.findings.counts["kills"] += 1
        await _until_ended(actor, engines)
        agent.start()
        await until_ready(attack)
        attack.faults.end(fault)


async def stop_agent(actor: Actor) -> None:
    """Stop an agent, while its engine goes on: to the front end, the machine is silent."""
    seconds = actor.random.choice(STOP_SECONDS)
    with _disturbed(actor, "stop agent", seconds=seconds) as agent:
        fault = actor.attack.faults.begin("agent")
        agent.process.send_signal(signal.SIGSTOP)
        await actor.attack.pause(seconds)
        agent.process.send_signal(signal.SIGCONT)
        await until_ready(actor.attack)
        actor.attack.faults.end(fault)


async def drain_agent(actor: Actor) -> None:
    """End an agent with SIGTERM, so that its requests move away, and start another one."""
    attack = actor.attack
    with _disturbed(actor, "drain agent") as agent:
        fault = attack.faults.begin("agent")
        engines = attack.server.children(ENGINE, agent.process.pid)
        code = await agent.end(signal.SIGTERM)
        if code != 0:
            text = f"the agent {agent.name} ended with exit code {code} after SIGTERM: {agent.log[-800:]}"
            attack.findings.violate(Invariant.NO_SERVER_ERROR, text)
        await _until_ended(actor, engines)
        agent.start()
        await until_ready(attack)
        attack.faults.end(fault)


async def fill_disk_of_agent(actor: Actor) -> None:
    """Fill the temporary folder of an agent and kill its engine."""
    seconds = actor.random.uniform(0.2, 1.0)
    with _disturbed(actor, "fill disk", seconds=round(seconds, 2)) as agent:
        engines = actor.attack.server.children(ENGINE, agent.process.pid)
        await fill_disk_and_kill(actor, agent.temporary_inside, engines, seconds)


FLEET_FAULTS: tuple[tuple[Fault, int], ...] = (
    (kill_agent, 3),
    (drain_agent, 3),
    (stop_agent, 2),
    (kill_engine_of_agent, 3),
    (stop_engine_of_agent, 2),
    (kill_helper, 2),
    (stop_helper, 1),
)


@contextlib.contextmanager
def _disturbed(actor: Actor, action: str, **details: float) -> Iterator[AttackedAgent]:
    """Choose an agent that may be gone for the duration of the block."""
    agent = actor.random.choice(actor.attack.server.agents)
    actor.act(action, agent=agent.name, **details)
    agent.is_disturbed = True
    try:
        yield agent
    finally:
        agent.is_disturbed = False


def _kill(actor: Actor, pids: list[int]) -> None:
    if signal_all(pids, signal.SIGKILL):
        actor.attack.findings.counts["kills"] += 1


async def _until_ended(actor: Actor, pids: list[int]) -> None:
    """Wait until engines have ended after their agent."""
    server, findings = actor.attack.server, actor.attack.findings
    ends_at = findings.seconds + actor.attack.settings.patience
    while left := {process.pid for process in server.processes} & set(pids):
        if findings.seconds > ends_at:
            findings.violate(Invariant.RETURNS_TO_BASELINE, f"engines {left} run without their agent")
            return
        await asyncio.sleep(POLL)
