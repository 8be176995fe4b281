"""The channel from the front end to one engine, in this process or another."""

from typing import Protocol

from octavo.protocol import Abort, GenerateRequest


class EngineChannel(Protocol):
    """Sends messages to an engine that is ready. `in_process` and `socket_channel` implement it.

    The engine's outputs do not pass through this interface: the owner of the channel passes them to
    `Hub.receive`. In process, that is the thread that runs the steps; over a socket, the task that reads it.
    """

    def send(self, message: GenerateRequest | Abort) -> None:
        """Send a message without waiting. Messages arrive in the order in which they were sent."""
