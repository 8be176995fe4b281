"""The agents that keep the budgets of API keys, as a front end sees them."""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from octavo.errors import OctavoError
from octavo.link.budget_messages import BudgetMessage, BudgetReply

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 0.5  # for an answer of a keeper
# After a change of keepers, until the new one grants units. All front ends must notice a change within this
# time of each other. Then the new keeper knows what all of them have used.
SETTLE_SECONDS = 1.0
WARNING_SECONDS = 60.0  # minimum time between two log lines


class BudgetTransport(Protocol):
    """The connections to keepers. Its methods, except `watch_keepers`, are called in the event loop."""

    @property
    def num_front_ends(self) -> int:
        """The number of front ends, including this one, as last known."""
        ...

    def keeper_of(self, name: str) -> str | None:
        """Return the id of the keeper of a name, or None if there is no live replica.

        It is the replica that `fleet.budget.keeper_of` chooses of all live replicas. The id is that of the
        agent's process: an agent that starts again has another id, because it has forgotten its budgets.
        """
        ...

    async def ask(self, keeper: str, message: BudgetMessage) -> BudgetReply:
        """Send a message to a keeper, and return the reply that has its number.

        Messages to one keeper are sent in the order of the calls. Raises OSError (such as ConnectionError) or
        OctavoError as soon as there is no connection to this process. The caller limits the time: if the call
        is cancelled, a reply that arrives later is dropped.
        """
        ...

    def watch_keepers(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of what `keeper_of` returns, in the event loop.

        A front end that calls it at once after the death of a keeper needs no fallback. This method is called
        once, when the server is created, perhaps in another thread and before there is an event loop.
        """
        ...


class Keepers:
    """Which keepers there are, and which do not answer. Owned by the event loop."""

    def __init__(self, transport: BudgetTransport, clock: Callable[[], float]) -> None:
        self.transport = transport
        self.clock = clock
        self.epoch = 0  # number of changes
        self.changed_at = -math.inf
        self.unreachable: set[str] = set()
        self._warned_at = -math.inf
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """Return the number of the next message."""
        return next(self._numbers)

    def note_change(self) -> None:
        self.epoch += 1
        self.changed_at = self.clock()
        self.unreachable.clear()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def exchange(self, keeper: str, message: BudgetMessage) -> BudgetReply | None:
        """Return the reply, or None if there is none in time. Nothing is awaited before the message is sent.

        If the keeper fails, its death may not be known yet. So this waits for a change of keepers before it
        takes the keeper for unreachable.
        """
        began, epoch = self.clock(), self.epoch
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reply = await self.transport.ask(keeper, message)
        except (OSError, OctavoError):  # TimeoutError is an OSError
            await self._wait_for_change(epoch, began + ANSWER_SECONDS - self.clock())
            if epoch == self.epoch:
                self.unreachable.add(keeper)
                self._warn(keeper)
            return None
        self.unreachable.discard(keeper)
        return reply

    def _warn(self, keeper: str) -> None:
        if self.clock() >= self._warned_at + WARNING_SECONDS:
            self._warned_at = self.clock()
            logger.warning(
                "replica %s does not answer: limits of API keys are divided between front ends", keeper
            )

    async def _wait_for_change(self, epoch: int, seconds: float) -> None:
        if epoch == self.epoch and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
