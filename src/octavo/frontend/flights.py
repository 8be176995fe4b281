"""All requests under way, and which of them the engine is asked for next. No sockets here."""

from collections import deque
from collections.abc import Iterator

from octavo.frontend.flight import Flight

SUSPICIOUS = 2  # engines in a row that died under a request and had given nothing for it


class Flights:
    """Mutated by EngineService only.

    Mostly a new engine is asked for everything at once. But if two engines in a row died under a request and
    had given nothing for it, some request may be the cause, and its neighbours must not end with it. Then all
    go one by one: the next is asked for when the last has got a token. So if the engine dies again, it is
    plain who was on trial, and only that one is blamed. The least suspicious go first.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Flight] = {}
        self._queue: deque[Flight] = deque()  # not asked for yet
        self._has_engine = False
        self._one_by_one = False
        self._last_asked: Flight | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Flight]:
        """A copy: it may be changed meanwhile."""
        return iter(list(self._by_id.values()))

    def get(self, request_id: str) -> Flight | None:
        return self._by_id.get(request_id)

    def add(self, flight: Flight) -> None:
        self._by_id[flight.request_id] = flight
        self._queue.append(flight)

    def remove(self, flight: Flight) -> None:
        del self._by_id[flight.request_id]

    def lose_engine(self) -> None:
        self._has_engine = False
        for flight in self._by_id.values():
            flight.lose_engine()

    def meet_engine(self) -> None:
        """A new engine can be asked."""
        self._has_engine = True
        self._last_asked = None
        self._queue = deque(sorted(self._by_id.values(), key=lambda flight: flight.blame))
        self._one_by_one = any(flight.blame >= SUSPICIOUS for flight in self._queue)

    def due(self) -> Iterator[Flight]:
        """Those to be asked for now. Each must be asked for before the next is taken from the iterator."""
        while self._queue and self._has_engine and not self._is_trial_on:
            flight = self._queue.popleft()
            if flight.request_id in self._by_id:  # else it ended while it waited
                self._last_asked = flight
                yield flight
        if not self._queue and not self._is_trial_on:
            self._one_by_one = False

    @property
    def _is_trial_on(self) -> bool:
        last = self._last_asked
        return self._one_by_one and last is not None and not last.is_proven and last.request_id in self._by_id
