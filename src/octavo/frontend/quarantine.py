"""Requests that may kill or hang an engine. They are sent one at a time, all to one replica."""

from collections.abc import Callable, Iterable

from octavo.fairness.queue import FairQueue
from octavo.fairness.tenant import Tenant
from octavo.frontend.in_flight import InFlightRequest

# After so many steps without a token of the isolated request, the next one is sent too. For example, the
# request may wait for a slot, or for a mask of its grammar.
MAX_ISOLATED_STEPS = 64


class Quarantine:
    """Owned by Hub.

    Requests are isolated: each is sent as soon as every choice of the previous one has a token. If the engine
    dies again, only the isolated request is blamed. Tenants take turns, each with its least suspect request
    first, so that nobody waits for all requests of another.
    """

    def __init__(self, is_in_flight: Callable[[str], bool]) -> None:
        self.replica: str | None = None  # that the requests are sent to; None: they wait for one
        self._is_in_flight = is_in_flight
        self._queue: FairQueue[InFlightRequest] = FairQueue()
        self._to_isolate: set[str] = set()  # ids of queued requests that must be isolated
        self._isolated: InFlightRequest | None = None  # the request that was last sent alone
        self._num_steps = 0  # since then

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def needs_replica(self) -> bool:
        """Whether requests wait and there is no replica for them. Those that only joined wait too."""
        return self.replica is None and bool(self.waiting())

    @property
    def pending(self) -> InFlightRequest | None:
        """The isolated request, while the next one must wait for it."""
        isolated = self._isolated
        if isolated is None or self._num_steps >= MAX_ISOLATED_STEPS or isolated.has_all_outputs:
            return None
        return isolated if self._is_in_flight(isolated.request_id) else None

    def waiting(self) -> list[InFlightRequest]:
        return [one for one in self._queue if self._is_in_flight(one.request_id)]

    def isolate(self, in_flight: InFlightRequest) -> None:
        """Add a request that must be isolated."""
        self._to_isolate.add(in_flight.request_id)
        self.join(in_flight)

    def join(self, in_flight: InFlightRequest) -> None:
        """Add a request that takes its turn with the others, because no other replica is usable."""
        message = in_flight.prepared.messages[0]
        self._queue.put(Tenant(message.tenant, message.weight), in_flight)

    def begin(self, replica: str, others: Iterable[InFlightRequest]) -> None:
        """Isolate all waiting requests, and `others`, on this replica."""
        waiting = [*others, *self.waiting()]
        self.replica, self._isolated, self._queue, self._to_isolate = replica, None, FairQueue(), set()
        # Isolating a request with many choices takes long, so it goes last among its equals.
        for in_flight in sorted(waiting, key=lambda one: (one.suspicion, one.num_unfinished)):
            self.isolate(in_flight)

    def lose_replica(self) -> InFlightRequest | None:
        """Wait for another replica. Return the request that the lost one was to compute alone, if any."""
        pending, self.replica, self._isolated = self.pending, None, None
        return pending

    def note_step(self) -> None:
        self._num_steps += 1

    def take(self) -> InFlightRequest | None:
        """Return the request to send now; None if there is none, or the next one must wait.

        When the last one has had its turn, the replica is like the others again.
        """
        while self.replica is not None and self.pending is None:
            entry = self._queue.take()
            if entry is None:
                break
            self._queue.end(entry, 1.0)
            in_flight = entry.item
            self._isolated = in_flight if self._to_isolate else None
            self._to_isolate.discard(in_flight.request_id)
            self._num_steps = 0
            if self._is_in_flight(in_flight.request_id):
                return in_flight
        if not self._to_isolate and self.pending is None:
            self.replica = None
        return None
