"""Room for connections: how many there may be, who makes way for a new one, and who may come beyond that."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

MOST_PROBES = 16  # connections beyond the last: for those who ask whether we are well

Guest = TypeVar("Guest")


class Room(Generic[Guest]):
    """Owned by the event loop. A guest who asks for nothing makes way when another comes: the one who has
    been idle for longest goes first."""

    def __init__(self, most: int, make_way: Callable[[Guest], None]) -> None:
        self._most = most
        self._make_way = make_way
        self._idle: OrderedDict[Guest, None] = OrderedDict()  # since the end of the last request, or ever

    def admit(self, guest: Guest, num_guests: int) -> bool:
        """`num_guests` with this one. False: there is room for probes only, or none; see `takes_probes`."""
        if num_guests > self._most:
            if not self._idle:
                return False
            oldest, _ = self._idle.popitem(last=False)
            self._make_way(oldest)
        self._idle[guest] = None
        return True

    def takes_probes(self, num_guests: int) -> bool:
        return num_guests <= self._most + MOST_PROBES

    def note_idle(self, guest: Guest) -> None:
        self._idle[guest] = None
        self._idle.move_to_end(guest)

    def note_busy(self, guest: Guest) -> None:
        """Also when it has left."""
        self._idle.pop(guest, None)
