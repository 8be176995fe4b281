"""Which API key a connection counts for: that of its latest request."""

import asyncio
from typing import Protocol


class ConnectionCount(Protocol):
    num_connections: int


class ConnectionOwner:
    """Belongs to one connection, which releases it when it is closed. Owned by the event loop."""

    def __init__(self) -> None:
        self.current: ConnectionCount | None = None
        self.closed = asyncio.Event()  # set when the connection is closed, or as soon as the server stops

    def assign(self, owner: ConnectionCount) -> None:
        """Count the connection for `owner`, and no longer for its previous owner."""
        if self.closed.is_set():
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
        self.closed.set()
