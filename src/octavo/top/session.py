"""What the user of `octavo top` watches: a server, and the replica whose engine is shown in detail."""

import queue

from octavo.top.connection import ReplicaNotFound, Unavailable, ViewConnection
from octavo.top.history import History
from octavo.view import AwayEvent


class Session:
    """Owned by the thread that draws the screen. The connection is replaced when the choice changes."""

    def __init__(self, connection: ViewConnection) -> None:
        self.connection = connection
        self.history = History(chosen=connection.replica)
        self._has_events = False  # of any connection so far

    def start(self) -> None:
        self.connection.start()

    @property
    def has_updates(self) -> bool:
        return not self.connection.updates.empty()

    def take_updates(self) -> None:
        """Move all received updates to the history. Raise a `PermanentFailure` of the connection."""
        while True:
            try:
                update = self.connection.updates.get_nowait()
            except queue.Empty:
                return
            if isinstance(update, ReplicaNotFound) and self._has_events:
                # The replica existed: it was removed, or the server was restarted, during a reconnection.
                self._return_to_automatic()
            elif isinstance(update, Exception):
                raise update
            else:
                self.history.note(update)
                self._has_events = self._has_events or not isinstance(update, Unavailable)
                is_removed = isinstance(update, AwayEvent) and update.state == "removed"
                if is_removed and self.history.chosen is not None:
                    self._return_to_automatic()

    def choose(self, replica: str | None) -> None:
        """Show the engine of a replica; None: of one that the server chooses."""
        if replica != self.history.chosen:
            self._connect(replica, "")

    def choose_neighbour(self, distance: int) -> None:
        """Show the engine of the replica at this distance from the one that is shown, in natural order."""
        names, shown = self.history.fleet.names, self.history.shown_replica
        if len(names) < 2:
            return
        if shown in names:
            place = names.index(shown) + distance
        else:
            place = 0 if distance > 0 else -1
        self.choose(names[place % len(names)])

    def _return_to_automatic(self) -> None:
        self._connect(None, f"{self.history.chosen} was removed: the server chooses the replica")

    def _connect(self, replica: str | None, notice: str) -> None:
        self.connection.stop()
        self.connection = self.connection.showing(replica)
        self.history.choose(replica, notice)
        self.connection.start()
