"""The way from the front end to one engine, wherever that engine runs."""

from typing import Protocol

from octavo.protocol import Abort, GenerateRequest


class EngineChannel(Protocol):
    """To an engine that can take requests. `in_process` and `socket_channel` implement it.

    What the engine answers is not here: whoever runs the channel hands it to `Hub.receive`. In process that
    is the thread that makes the steps; over a socket it is the task that reads it.
    """

    def send(self, message: GenerateRequest | Abort) -> None:
        """Never waits. Messages arrive in the order in which they were sent."""
