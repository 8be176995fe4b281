"""Requests that no engine has seen yet, in the order in which they are sent.

The next one belongs to the tenant with the lowest rank, and among these to the one that has received the
minimum of service per weight, over all replicas. Within a tenant, priority and then arrival decide.
"""

from collections.abc import Collection, Iterator

from octavo.fairness.accounts import Account, Accounts
from octavo.fleet.cost import EXPECTED_TOKENS
from octavo.frontend.in_flight import InFlightRequest
from octavo.lazy_heap import LazyHeap


class TenantLine:
    """The new requests of a tenant with one rank. Changed by NewRequests only."""

    def __init__(self, account: Account, rank: int, heap: LazyHeap[str]) -> None:
        self.account = account
        self.rank = rank
        self.heap = heap  # ids of requests, by priority and arrival


class NewRequests:
    """Changed by Hub only. A request has an account until `end`, also while an engine computes it."""

    def __init__(self) -> None:
        self._accounts = Accounts()
        self._waiting: dict[str, InFlightRequest] = {}
        self._lines: dict[tuple[int, str], TenantLine] = {}
        self._account_of: dict[str, tuple[Account, float]] = {}  # by request id, with what was charged
        self._deadlines: LazyHeap[str] = LazyHeap(self.__contains__)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[InFlightRequest]:
        return iter(self._waiting.values())

    def put(self, in_flight: InFlightRequest) -> TenantLine:
        """Add a request. Return its line."""
        message = in_flight.prepared.messages[0]
        account = self._accounts.enter(message.tenant, message.weight)
        self._account_of[in_flight.request_id] = account, 0.0
        self._waiting[in_flight.request_id] = in_flight
        key = message.rank, message.tenant
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = TenantLine(account, message.rank, LazyHeap(self.__contains__))
        line.account = account  # accounts of inactive tenants are forgotten
        if in_flight.deadline is not None:
            self._deadlines.push(in_flight.deadline, in_flight.request_id)
        line.heap.push(message.priority, in_flight.request_id)
        return line

    def first(self, line: TenantLine) -> InFlightRequest | None:
        """Return the first request of a line that still waits."""
        request_id = line.heap.peek()
        return None if request_id is None else self._waiting[request_id]

    def next_line(self, blocked: Collection[TenantLine]) -> TenantLine | None:
        """Return the line to serve next that is not blocked; it has a request."""
        for key in [key for key, line in self._lines.items() if self.first(line) is None]:
            del self._lines[key]
        lines = [line for line in self._lines.values() if line not in blocked]
        if not lines:
            return None
        chosen = min(lines, key=lambda line: (line.rank, line.account.used))
        if not blocked:
            self._accounts.note_min(chosen.account.used)
        return chosen

    def take(self, in_flight: InFlightRequest, num_prompt_tokens: int) -> None:
        """Remove a request that is sent, and charge its tenant for what it will probably need."""
        del self._waiting[in_flight.request_id]
        account, _ = self._account_of[in_flight.request_id]
        expected = num_prompt_tokens + sum(
            min(message.params.max_tokens or 1, EXPECTED_TOKENS) for message in in_flight.prepared.messages
        )
        self._accounts.charge(account, expected)
        self._account_of[in_flight.request_id] = account, expected - num_prompt_tokens

    def take_all(self) -> list[InFlightRequest]:
        """Remove and return all requests, in the order in which they would be sent."""
        taken = []
        while (line := self.next_line(())) is not None:
            in_flight = self.first(line)
            assert in_flight is not None
            self.take(in_flight, len(in_flight.prepared.messages[0].prompt_ids))
            taken.append(in_flight)
        return taken

    def expired(self, now: float) -> list[InFlightRequest]:
        """Return the requests that still wait although their deadline has passed, each once."""
        expired = []
        while (request_id := self._deadlines.peek()) is not None:
            deadline = self._waiting[request_id].deadline
            if deadline is None or deadline > now:
                break
            expired.append(self._waiting[self._deadlines.pop()])
        return expired

    def end(self, request_id: str, num_generated: int) -> None:
        """Forget a request that has ended, and charge what it needed instead of what was expected."""
        self._waiting.pop(request_id, None)
        account, expected = self._account_of.pop(request_id, (None, 0.0))
        if account is not None:
            self._accounts.charge(account, num_generated - expected)
            self._accounts.leave(account)
