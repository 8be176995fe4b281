"""The limit on open connections: idle ones are closed first, and a few more are admitted for probes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_PROBES = 16  # connections above the limit, for probes only

Connection = TypeVar("Connection")


class ConnectionLimit(Generic[Connection]):
    """Owned by the event loop. At the limit, a new connection replaces the one that has been idle longest."""

    def __init__(self, limit: int, close: Callable[[Connection], None]) -> None:
        self._limit = limit
        self._close = close
        self._idle: OrderedDict[Connection, None] = OrderedDict()  # longest idle first

    def admit(self, connection: Connection, num_connections: int) -> bool:
        """Return whether there is room. If not, `admits_probes` returns whether a probe has room.

        `num_connections` includes this one.
        """
        if num_connections > self._limit:
            if not self._idle:
                return False
            oldest, _ = self._idle.popitem(last=False)
            self._close(oldest)
        self._idle[connection] = None
        return True

    def admits_probes(self, num_connections: int) -> bool:
        return num_connections <= self._limit + MAX_PROBES

    def note_idle(self, connection: Connection) -> None:
        self._idle[connection] = None
        self._idle.move_to_end(connection)

    def note_busy(self, connection: Connection) -> None:
        """Mark a connection as busy or closed."""
        self._idle.pop(connection, None)
