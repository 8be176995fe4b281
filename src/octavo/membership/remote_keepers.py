"""The way to the agents that keep the budgets of API keys: see `fleet.budget`."""

from collections.abc import Callable, Iterable

from octavo.fleet import budget
from octavo.link.budget_messages import BudgetMessage, BudgetReply
from octavo.link.socket_reader import LinkLost
from octavo.membership.remote_replica import RemoteReplica


class RemoteKeepers:
    """Owned by the event loop. A keeper is identified by the process of its agent."""

    def __init__(self, replicas: Callable[[], Iterable[RemoteReplica]]) -> None:
        self._replicas = replicas
        self._watchers: list[Callable[[], None]] = []

    @property
    def num_front_ends(self) -> int:
        """The number of front ends, including this one, as the replicas know it."""
        return max((one.num_front_ends for one in self._connected()), default=1)

    def keeper_of(self, name: str) -> str | None:
        """Return the agent that keeps the budgets of a name; None if none is connected."""
        return budget.keeper_of(name, [one.agent_id for one in self._connected()])

    async def ask(self, keeper: str, message: BudgetMessage) -> BudgetReply:
        """Send a message to a keeper, and return its reply. Raises LinkLost."""
        for replica in self._connected():
            if replica.agent_id == keeper:
                return await replica.ask_budget(message)
        raise LinkLost("there is no connection to the keeper")

    def watch_keepers(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever an agent has connected or is gone."""
        self._watchers.append(changed)

    def note_change(self) -> None:
        for changed in self._watchers:
            changed()

    def _connected(self) -> list[RemoteReplica]:
        return [one for one in self._replicas() if one.is_connected]
