"""Front ends and keepers in one process and in virtual time, with messages that take time and get lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from octavo.fleet.budget import BudgetKeeper, keeper_of
from octavo.link.budget_messages import BudgetMessage, BudgetReply, answer_budget
from octavo.server.http.key_file import KeyLimits
from octavo.server.key_limits import KeyAccount, KeyAccounts
from server.virtual_time import now

NAME = "alice"
MAX_DELAY = 0.004  # seconds of a message in one direction
MAX_SPREAD = 0.8  # seconds until the last front end notices a change

encode = msgspec.msgpack.encode
decode_message = msgspec.msgpack.Decoder(BudgetMessage).decode
decode_reply = msgspec.msgpack.Decoder(BudgetReply).decode


class MemoryTransport:
    """A `BudgetTransport`. Messages to a keeper arrive in order."""

    def __init__(self, fleet: "BudgetFleet", name: str) -> None:
        self.name = name
        self.num_asked = 0
        self.view = list(fleet.keepers)  # the replicas that this front end takes for live
        self.is_cut = False  # nothing arrives
        self._fleet = fleet
        self._arrivals: dict[str, float] = {}  # of the last message, by keeper
        self._changed: Callable[[], None] = lambda: None

    @property
    def num_front_ends(self) -> int:
        return len(self._fleet.transports)

    def keeper_of(self, name: str) -> str | None:
        return keeper_of(name, self.view)

    def watch_keepers(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def see(self, view: list[str]) -> None:
        self.view = view
        self._changed()

    async def ask(self, keeper: str, message: BudgetMessage) -> BudgetReply:
        self.num_asked += 1
        arrival = max(self._arrivals.get(keeper, 0.0), now() + self._fleet.delay())
        self._arrivals[keeper] = arrival
        await asyncio.sleep(arrival - now())
        await self._lose()
        if keeper not in self._fleet.keepers:
            raise ConnectionResetError
        received = decode_message(encode(message))
        reply = encode(answer_budget(self._fleet.keepers[keeper], self.name, received))
        await asyncio.sleep(self._fleet.delay())
        await self._lose()
        received_reply: BudgetReply = decode_reply(reply)
        return received_reply

    async def _lose(self) -> None:
        if self.is_cut or self._fleet.rng.random() < self._fleet.loss:
            await asyncio.sleep(3600)


class BudgetFleet:
    """Front ends with one key and keepers. Must be created in the loop."""

    def __init__(
        self, limits: KeyLimits, *, num_front_ends: int = 1, seed: int = 0, loss: float = 0.0
    ) -> None:
        self.rng = random.Random(seed)
        self.loss = loss
        self.keepers: dict[str, BudgetKeeper] = {}
        self.transports: list[MemoryTransport] = []
        self._num_started = 0
        self._clock = asyncio.get_running_loop().time
        for _ in range(3):
            self.start_keeper()
        self.transports += [MemoryTransport(self, f"f{index}") for index in range(num_front_ends)]
        self._accounts = [KeyAccounts(self._clock, transport) for transport in self.transports]
        self._tasks = [asyncio.create_task(accounts.keep_leases()) for accounts in self._accounts]
        self.set_limits(limits)

    def set_limits(self, limits: KeyLimits) -> None:
        for accounts in self._accounts:
            accounts.update({NAME: limits})

    @property
    def accounts(self) -> list[KeyAccount]:
        """The account of the key in each front end."""
        return [accounts.of(NAME) for accounts in self._accounts]

    def delay(self) -> float:
        return self.rng.uniform(0.0002, MAX_DELAY)

    def start_keeper(self) -> str:
        name = f"r{self._num_started}"
        self._num_started += 1
        self.keepers[name] = BudgetKeeper(self._clock)
        self._announce()
        return name

    def kill_keeper(self, name: str | None = None) -> None:
        """End the keeper of the key, or another one."""
        del self.keepers[name or self.keeper]
        self._announce()

    @property
    def keeper(self) -> str:
        keeper = keeper_of(NAME, self.keepers)
        assert keeper is not None
        return keeper

    async def stop_front_end(self, index: int) -> None:
        self._tasks[index].cancel()
        self.transports[index].is_cut = True
        for keeper in self.keepers.values():
            keeper.drop_front_end(self.transports[index].name)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _announce(self) -> None:
        """Each front end notices the change at a time of its own."""
        for transport in self.transports:
            loop = asyncio.get_running_loop()
            loop.call_later(self.rng.uniform(0.0, MAX_SPREAD / 2), transport.see, list(self.keepers))


@asynccontextmanager
async def budget_fleet(
    limits: KeyLimits, *, num_front_ends: int = 1, seed: int = 0, loss: float = 0.0
) -> AsyncIterator[BudgetFleet]:
    fleet = BudgetFleet(limits, num_front_ends=num_front_ends, seed=seed, loss=loss)
    await asyncio.sleep(2)  # until all keepers are known and settled
    try:
        yield fleet
    finally:
        fleet.close()
