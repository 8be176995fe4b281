r"""Requests that no engine has seen yet: where they will go, and in which order they are sent.

    put ---> router ---> the replica has room ---------------------> sent
                    \--> it has not: the request waits for it -----> sent, there or to a better one
                         (its prompt counts in the cost of that replica)

When a replica has room, the next request belongs to the tenant with the lowest rank, and among these to the
one that has received the minimum of service per weight, over all replicas. Within a tenant, priority and then
arrival decide. A replica for which nothing waits takes from the one for which the most waits.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from octavo.fairness.accounts import Account, Accounts
from octavo.fleet.cost import EXPECTED_TOKENS
from octavo.fleet.router import Route
from octavo.frontend.in_flight import InFlightRequest
from octavo.frontend.replica_link import Line, ReplicaLink, line_of
from octavo.lazy_heap import LazyHeap

MAX_TAKEN = 4  # requests that one replica takes from others at a time

NOWHERE = ""  # in place of a replica: there was none to send to


class TenantLine:
    """The requests of a tenant with one rank that wait for one replica. Changed by NewRequests only."""

    def __init__(self, account: Account, heap: LazyHeap[str]) -> None:
        self.account = account
        self.heap = heap  # ids of requests, by priority and arrival


class WaitingRequest:
    """Changed by NewRequests only."""

    __slots__ = ("account", "in_flight", "key", "num_expected", "num_missing", "replica")

    def __init__(self, in_flight: InFlightRequest, account: Account, key: tuple[int, int]) -> None:
        self.in_flight = in_flight
        self.account = account
        self.key = key  # priority, and number by arrival: the order within a line
        self.num_expected = 0  # generated tokens that its tenant was charged for
        self.num_missing = 0  # tokens of its prompt that the replica lacks
        self.replica: str | None = None  # that it waits for; None: it was sent


class NewRequests:
    """Changed by Hub only. A request has an account until `end`, also while an engine computes it."""

    def __init__(
        self,
        links: Mapping[str, ReplicaLink],
        *,
        is_open: Callable[[str], bool],
        route: Callable[[InFlightRequest], Route | None],
        send: Callable[[InFlightRequest, Route], None],
    ) -> None:
        """`is_open` returns whether any request may be sent to a replica, and `route` the best of these."""
        self._links = links
        self._is_open = is_open
        self._route = route
        self._send = send
        self._accounts = Accounts()
        self._requests: dict[str, WaitingRequest] = {}  # by id, with those that were sent
        self._lines: dict[str, dict[Line, TenantLine]] = {}  # by replica; those with requests
        self._deadlines: LazyHeap[str] = LazyHeap(self.__contains__)
        self._num_waiting = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._num_waiting

    def __contains__(self, request_id: str) -> bool:
        request = self._requests.get(request_id)
        return request is not None and request.replica is not None

    def __iter__(self) -> Iterator[InFlightRequest]:
        return (one.in_flight for one in self._requests.values() if one.replica is not None)

    def put(self, in_flight: InFlightRequest) -> None:
        """Add a request, and send it if its replica has room."""
        message = in_flight.prepared.messages[0]
        account = self._accounts.enter(message.tenant, message.weight)
        key = message.priority, next(self._numbers)
        request = self._requests[in_flight.request_id] = WaitingRequest(in_flight, account, key)
        self._place(request, self._route(in_flight))
        if in_flight.deadline is not None and request.replica is not None:
            self._deadlines.push(in_flight.deadline, in_flight.request_id)

    def fill(self, replica: str) -> None:
        """Send requests to a replica, as far as it has room."""
        link = self._links[replica]
        link.has_new_room = False
        while (first := self._first(replica, link)) is not None:
            self._leave(first)
            route = self._route(first.in_flight)  # what is best may have changed since it came
            if route is None or (route.replica != replica and not self._is_free(route.replica)):
                route = Route(replica, first.in_flight.num_tokens - first.num_missing)
            self._send_to(first, route)
        if self._is_open(replica) and self._is_free(replica):
            self._take_from_others(replica)

    def place_again(self) -> None:
        """Choose again for requests that wait for a replica which is no longer usable, or for any."""
        for replica in [name for name in self._lines if not self._is_open(name)]:
            for request in self._in_order(replica):
                if request.replica != replica:  # it was sent meanwhile
                    continue
                route = self._route(request.in_flight)
                if route is None:  # nor is there a place for the others
                    return
                self._leave(request)
                self._place(request, route)

    def take_all(self) -> list[InFlightRequest]:
        """Remove and return all requests, in the order in which they would be sent."""
        requests = [request for replica in list(self._lines) for request in self._in_order(replica)]
        for request in requests:
            self._leave(request)
            self._charge(request, request.in_flight.num_tokens)
        return [request.in_flight for request in requests]

    def expired(self, now: float) -> list[InFlightRequest]:
        """Return the requests that still wait although their deadline has passed, each once."""
        expired = []
        while (request_id := self._deadlines.peek()) is not None:
            in_flight = self._requests[request_id].in_flight
            if in_flight.deadline is None or in_flight.deadline > now:
                break
            self._deadlines.pop()
            expired.append(in_flight)
        return expired

    def end(self, request_id: str, num_generated: int) -> None:
        """Forget a request that has ended, and charge what it needed instead of what was expected."""
        request = self._requests.get(request_id)
        if request is not None:
            if request.replica is not None:
                self._leave(request)
            del self._requests[request_id]
            self._accounts.charge(request.account, num_generated - request.num_expected)
            self._accounts.leave(request.account)

    # -- where a request goes ----------------------------------------------------------------------------

    def _place(self, request: WaitingRequest, route: Route | None) -> None:
        """Send a request, or let it wait for a replica."""
        if route is None:
            self._join(request, NOWHERE)
            return
        request.num_missing = request.in_flight.num_tokens - route.num_cached
        link = self._links[route.replica]
        if route.replica not in self._lines and link.has_room(line_of(request.in_flight), request.key[0]):
            self._send_to(request, route)
        else:
            self._join(request, route.replica)
            self.fill(route.replica)

    def _take_from_others(self, replica: str) -> None:
        """Send requests that wait for other replicas to this one, if they cost less here."""
        for _ in range(MAX_TAKEN):
            waiting = [name for name in self._lines if name in self._links]
            if not waiting or not self._links[replica].has_credit:
                return
            longest = max((self._links[name] for name in waiting), key=lambda link: link.num_waiting_tokens)
            request = self._first(longest.name, None)
            assert request is not None, "there is a line"
            longest.num_waiting_tokens -= request.num_missing  # it does not wait for itself
            route = self._route(request.in_flight)
            longest.num_waiting_tokens += request.num_missing
            if route is None or route.replica != replica:
                return
            self._leave(request)
            self._send_to(request, route)

    def _send_to(self, request: WaitingRequest, route: Route) -> None:
        self._charge(request, request.in_flight.num_tokens - route.num_cached)
        self._send(request.in_flight, route)

    def _charge(self, request: WaitingRequest, num_prompt_tokens: int) -> None:
        """Charge the tenant for what the request will probably need."""
        messages = request.in_flight.prepared.messages
        request.num_expected = sum(min(one.params.max_tokens or 1, EXPECTED_TOKENS) for one in messages)
        self._accounts.charge(request.account, num_prompt_tokens + request.num_expected)

    def _is_free(self, replica: str) -> bool:
        """Whether a replica has credit that no other request waits for."""
        return replica not in self._lines and self._links[replica].has_credit

    # -- lines -------------------------------------------------------------------------------------------

    def _join(self, request: WaitingRequest, replica: str) -> None:
        request.replica = replica
        self._num_waiting += 1
        lines = self._lines.setdefault(replica, {})
        key = line_of(request.in_flight)
        line = lines.get(key)
        if line is None:
            line = lines[key] = TenantLine(request.account, LazyHeap(partial(self._waits_for, replica)))
        line.heap.push(request.key, request.in_flight.request_id)
        if replica in self._links:
            self._links[replica].num_waiting_tokens += request.num_missing

    def _leave(self, request: WaitingRequest) -> None:
        replica = request.replica
        assert replica is not None, "it waits"
        request.replica = None
        self._num_waiting -= 1
        lines, key = self._lines[replica], line_of(request.in_flight)
        if lines[key].heap.peek() is None:
            del lines[key]
            if not lines:
                del self._lines[replica]
        if replica in self._links:
            self._links[replica].num_waiting_tokens -= request.num_missing

    def _first(self, replica: str, link: ReplicaLink | None) -> WaitingRequest | None:
        """Return the request that is sent next to a replica; with `link`, only one that it has room for."""
        lines = self._lines.get(replica)
        if not lines or (link is not None and not self._is_open(replica)):
            return None
        self._accounts.note_min(min([line.account.used for line in lines.values()]))
        firsts: list[tuple[int, float, str]] = []
        for (_, rank), line in lines.items():
            request_id = line.heap.peek()
            assert request_id is not None, "lines without requests are removed"
            firsts.append((rank, line.account.used, request_id))
        for _, _, request_id in sorted(firsts):
            request = self._requests[request_id]
            if link is None or link.has_room(line_of(request.in_flight), request.key[0]):
                return request
        return None

    def _in_order(self, replica: str) -> list[WaitingRequest]:
        lines = sorted(self._lines[replica].items(), key=lambda item: (item[0][1], item[1].account.used))
        return [
            self._requests[request_id]
            for _, line in lines
            for request_id in dict.fromkeys(entry[2] for entry in sorted(line.heap.entries))
            if self._waits_for(replica, request_id)
        ]

    def _waits_for(self, replica: str, request_id: str) -> bool:
        request = self._requests.get(request_id)
        return request is not None and request.replica == replica
