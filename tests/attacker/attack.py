"""What all actors of one attack share: the server, the requests in flight, and the checks of every reply."""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from attacker.contract import problems
from attacker.fault_log import FaultLog
from attacker.findings import Findings, Invariant
from attacker.processes import AttackedServer
from attacker.tenants import TenantKey, Tenants
from attacker.wire import Abandoned, Client, Reply, get, post
from data.json_types import Json

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# Set in the tasks of hostile actors, and inherited by the tasks that they create.
IS_HOSTILE: ContextVar[bool] = ContextVar("is_hostile", default=False)


class Value(Protocol):
    """The value of a metric, by its name without prefix, summed over labels; of one key, if given."""

    def __call__(self, name: str, key: str | None = None) -> float: ...


@dataclass(frozen=True)
class Settings:
    seconds: float = 40.0
    seed: int = 1
    flags: tuple[str, ...] = ("--kv-memory", "32MiB")  # of the engines; about 1,400 tokens of SmolLM2
    num_agents: int = 0  # of a fleet, with one engine each; 0: a server with an engine of its own
    num_tenants: int = 5
    num_hostile_actors: int = 6
    has_faults: bool = True
    stops_at: frozenset[Invariant] = frozenset()  # a violation of these ends the attack
    round_seconds: float = 120.0  # a long attack is a sequence of rounds, each with all checks
    patience: float = 300.0  # seconds without any change until something counts as hung
    min_share: float = 0.7  # of the part that a tenant's weight gives it


@dataclass
class Open:
    """A request in flight."""

    client: Client
    note: str
    is_hostile: bool  # the server may be slow to finish it, so it is not awaited at the end


class Attack:
    """Owned by one event loop."""

    def __init__(
        self, server: AttackedServer, tenants: Tenants, settings: Settings, findings: Findings
    ) -> None:
        self.server = server
        self.tenants = tenants
        self.settings = settings
        self.findings = findings
        self.faults = FaultLog()
        self.is_over = asyncio.Event()
        self.in_flight: dict[int, Open] = {}
        self.num_answers = 0  # received completely and checked
        self._next = 0
        self._metrics: Client | None = None

    @property
    def has_ended(self) -> bool:
        """Whether actors should start nothing more."""
        return self.is_over.is_set() or self.is_decided

    @property
    def is_decided(self) -> bool:
        """Whether there are enough violations to end the attack."""
        return self.findings.is_full or self.findings.has(self.settings.stops_at)

    async def pause(self, seconds: float) -> None:
        """Wait, at most until the attack ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.is_over.wait(), seconds)

    @contextlib.asynccontextmanager
    async def connected(self, note: str, *, buffers_little: bool = False) -> AsyncIterator[Client]:
        """Open a connection for the duration of the block."""
        client = await Client.open(self.server.port, buffers_little=buffers_little)
        self._next += 1
        number = self._next
        self.in_flight[number] = Open(client, note, IS_HOSTILE.get())
        try:
            yield client
        finally:
            del self.in_flight[number]
            client.disconnect()

    async def exchange(self, data: bytes, expected: Iterable[str], note: str) -> Reply | None:
        """Send one request and check its reply. Returns None if the connection ended before the reply."""
        began = time.monotonic()
        try:
            async with self.connected(note) as client:
                await client.send(data)
                await client.replied()
                reply = client.replies[0] if client.replies else Reply()
        except Abandoned:
            return None
        except OSError as error:
            self.findings.violate(Invariant.ENDS_AS_DOCUMENTED, f"{note}: cannot connect: {error}")
            return None
        path = data.split(b" ", 2)[1].decode("latin-1")
        self.check(reply, expected, note, began, path=path)
        return reply if reply.is_complete else None

    async def ask(
        self, tenant: TenantKey, body: Json, expected: Iterable[str], note: str, path: str = COMPLETIONS
    ) -> Reply | None:
        return await self.exchange(post(path, tenant.key, body), expected, f"{tenant.name}: {note}")

    def check(
        self, reply: Reply, expected: Iterable[str], note: str, began: float, *, path: str = COMPLETIONS
    ) -> None:
        """Check invariants 1 and 5 of one reply to a request that was sent at `began`."""
        self.findings.counts[f"status {reply.status}"] += 1
        if not reply.is_complete:
            self.findings.violate(
                Invariant.ENDS_AS_DOCUMENTED,
                f"{note}: the connection ended after {len(reply.body)} bytes of a reply with status"
                f" {reply.status}, without a terminal event: {bytes(reply.body[-200:])!r}",
            )
            return
        self.num_answers += 1
        problem = problems(reply, expected, lambda label: self.faults.explain(label, began), path)
        if problem is not None:
            is_server_error = reply.status >= 500
            invariant = Invariant.NO_SERVER_ERROR if is_server_error else Invariant.ENDS_AS_DOCUMENTED
            self.findings.violate(invariant, f"{note}: {problem}")

    async def metrics(self) -> Value | None:
        """Scrape as the operator. Returns None if the server does not answer now."""
        if self._metrics is None or self._metrics.is_lost:
            try:
                self._metrics = await Client.open(self.server.port)
            except OSError:
                return None
        client = self._metrics
        count = client.num_complete + 1
        await client.send(get("/metrics", self.tenants.operator.key))
        if not await client.replied(count) or client.replies[-1].status != 200:
            return None
        text = client.replies[-1].body.decode()
        del client.replies[:-1]

        def value(name: str, key: str | None = None) -> float:
            labels = r"(?:{[^}]*})?" if key is None else rf'{{[^}}]*key="{key}"[^}}]*}}'
            found = re.findall(rf"^(?:octavo:)?{name}{labels} (\S+)$", text, re.MULTILINE)
            if not found:
                raise LookupError(f"{name} is not in /metrics")
            return sum(map(float, found))

        return value

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.disconnect()


class Actor:
    """One source of actions, with its own generator of random numbers derived from the seed."""

    def __init__(self, attack: Attack, name: str, tenant: TenantKey) -> None:
        self.attack = attack
        self.name = name
        self.tenant = tenant
        self.random = random.Random(f"{attack.settings.seed}:{name}")
        self._number = 0

    def act(self, action: str, /, **details: Json) -> None:
        self._number += 1
        self.attack.findings.act(self.name, self._number, action, **details)
