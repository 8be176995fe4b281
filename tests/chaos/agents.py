"""Agents of replicas in this process, on loopback. By default, their engine processes compute nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import zmq

from octavo.fleet.router import Router
from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineSupervisor
from octavo.link.fleet_key import new_fleet_keys
from octavo.link.folder import EngineSettings
from octavo.membership.addresses import FixedAddresses
from octavo.membership.remote import RemoteReplicas
from octavo.replica.gate import Gate
from octavo.replica.relay import Relay
from patience import HANG_SECONDS

NULL_ENGINE = "octavo.simulate.null_engine"


class KeyFiles:
    """The two key files of a fleet, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.replica, self.front_end = folder / "replica.key", folder / "front-end.key"
        for path, key in zip((self.replica, self.front_end), new_fleet_keys(), strict=True):
            path.write_text(key.text("of a test"))
            path.chmod(0o600)


class LocalAgent:
    """One agent with its engine. Its port stays the same when it is started again."""

    def __init__(
        self, name: str, keys: KeyFiles, port: int = 0, *, module: str = NULL_ENGINE, **options: Any
    ) -> None:
        """`module` is what the engine process runs, with these options."""
        self.name = name
        self.num_restart_commands = 0
        self._context: zmq.Context[Any] = zmq.Context()
        self.gate = Gate(self._context, keys.replica)
        self.relay = Relay(name, self._context, self.gate, self._note_restart)
        null_options = {"vocab_size": 260, "step_seconds": 0.002} if module == NULL_ENGINE else {}
        settings = EngineSettings(null_options | options, log_level="warning")
        self.supervisor = EngineSupervisor(settings, self.relay, name=name, module=module)
        # Clients connect from 127.0.0.1, so none of them takes this port between two starts.
        endpoint = self.relay.open(f"127.0.0.2:{port}", self.supervisor)
        self.address = f"127.0.0.2:{endpoint.rpartition(':')[2]}"
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.supervisor.start()
        self._tasks = [asyncio.create_task(self.relay.run()), asyncio.create_task(self.relay.keep_beating())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.relay.close()
        await self.supervisor.close()
        self.gate.close()
        self._context.destroy(linger=0)

    def fall_silent(self) -> None:
        """Neither read nor send any message from now on, like a machine that is cut off."""
        forwarding = [one.forwarding for one in self.relay._front_ends.values()]
        for task in (*self._tasks, *forwarding):
            if task is not None:
                task.cancel()

    def _note_restart(self) -> None:
        self.num_restart_commands += 1


class AgentFleet:
    def __init__(self, keys: KeyFiles, agents: list[LocalAgent], front_ends: list[RemoteReplicas]) -> None:
        self.keys = keys
        self.agents = agents
        self.front_ends = front_ends

    @property
    def front_end(self) -> RemoteReplicas:
        return self.front_ends[0]


@asynccontextmanager
async def agent_fleet(
    folder: Path, num_agents: int = 2, num_front_ends: int = 1, **options: Any
) -> AsyncIterator[AgentFleet]:
    """Start agents and front ends, and yield them when every front end can use every replica."""
    keys = KeyFiles(folder)
    async with AsyncExitStack() as stack:
        agents = [LocalAgent(f"m{number}", keys, **options) for number in range(num_agents)]
        for agent in agents:
            stack.push_async_callback(agent.close)
            agent.start()
        addresses = FixedAddresses(tuple(sorted(agent.address for agent in agents)))
        front_ends = [
            RemoteReplicas(addresses, keys.front_end, lambda: Hub(Router.with_prefixes()))
            for _ in range(num_front_ends)
        ]
        for front_end in front_ends:
            stack.push_async_callback(front_end.close)
            front_end.start()
        await until(lambda: all(_num_usable(front_end) == num_agents for front_end in front_ends))
        yield AgentFleet(keys, agents, front_ends)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def _num_usable(front_end: RemoteReplicas) -> int:
    return len([replica for replica in front_end.replicas if replica.is_usable])
