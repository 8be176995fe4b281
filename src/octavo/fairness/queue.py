"""A queue of items that waits for something that serves one item at a time, fair between tenants."""

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from octavo.fairness.accounts import Account, Accounts
from octavo.fairness.tenant import Tenant

Item = TypeVar("Item")


class FairEntry(Generic[Item]):
    """An item from `put` until `end` or `remove`."""

    __slots__ = ("account", "item", "number")

    def __init__(self, item: Item, account: Account, number: int) -> None:
        self.item = item
        self.account = account
        self.number = number  # by order of arrival


class FairQueue(Generic[Item]):
    """Owned by one thread or event loop, or guarded by the owner's lock."""

    def __init__(self) -> None:
        self._accounts = Accounts()
        self._waiting: dict[str, OrderedDict[int, FairEntry[Item]]] = {}  # by tenant, then by number
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Item]:
        return (entry.item for entries in self._waiting.values() for entry in entries.values())

    def put(self, tenant: Tenant, item: Item) -> FairEntry[Item]:
        account = self._accounts.enter(tenant.name, tenant.weight)
        entry = FairEntry(item, account, next(self._numbers))
        self._waiting.setdefault(tenant.name, OrderedDict())[entry.number] = entry
        return entry

    def take(self) -> FairEntry[Item] | None:
        """Remove and return the entry to serve next. The caller must `end` it.

        It belongs to the waiting tenant that has received the minimum of service per weight. Equal tenants,
        and the entries of one tenant, are served in order of arrival.
        """
        if not self._waiting:
            return None
        heads = [next(iter(entries.values())) for entries in self._waiting.values()]
        chosen = heads[0]
        if len(heads) > 1:
            chosen = min(heads, key=lambda entry: (entry.account.used, entry.number))
        self._accounts.note_min(chosen.account.used)
        self._withdraw(chosen)
        return chosen

    def end(self, entry: FairEntry[Item], service: float) -> None:
        """Charge the service of an entry that was taken."""
        self._accounts.charge(entry.account, service)
        self._accounts.leave(entry.account)

    def remove(self, entry: FairEntry[Item]) -> None:
        """Forget an entry. Does nothing if it was taken or removed before."""
        if self._withdraw(entry):
            self._accounts.leave(entry.account)

    def _withdraw(self, entry: FairEntry[Item]) -> bool:
        entries = self._waiting.get(entry.account.name)
        if entries is None or entries.pop(entry.number, None) is None:
            return False
        if not entries:
            del self._waiting[entry.account.name]
        return True
