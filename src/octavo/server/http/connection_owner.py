"""Which API key a connection counts for: that of its latest request."""

from typing import Protocol


class ConnectionCount(Protocol):
    num_connections: int


class ConnectionOwner:
    """Belongs to one connection, which releases it when it is closed. Owned by the event loop."""

    def __init__(self) -> None:
        self.current: ConnectionCount | None = None
        self._is_closed = False

    def assign(self, owner: ConnectionCount) -> None:
        """Count the connection for `owner`, and no longer for its previous owner."""
        if self._is_closed:
            return
        self.release()
        owner.num_connections += 1
        self.current = owner

    def release(self) -> None:
        if self.current is not None:
            self.current.num_connections -= 1
            self.current = None

    def close(self) -> None:
        self.release()
        self._is_closed = True
