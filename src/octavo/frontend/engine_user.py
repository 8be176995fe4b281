"""Who uses the engines that a supervisor starts: the hub of a server, or the relay of `octavo replica`."""

from collections.abc import Callable
from typing import Protocol

from octavo.frontend.loss import Loss
from octavo.frontend.replica_link import ReplicaLink
from octavo.frontend.socket_channel import SocketChannel
from octavo.protocol import EngineFacts, EngineOutputs, PrefixList


class EngineUser(Protocol):
    """A supervisor tells it what happens to the engines of one replica. No method waits."""

    @property
    def has_grammars(self) -> bool:
        """Whether the next engine will soon be sent requests with grammars."""

    def __len__(self) -> int:
        """Return the number of requests in flight."""

    def expect(self, replica: str) -> ReplicaLink | None:
        """Add a replica, whose engine will connect later. Return what is known about it, to be read only."""

    def connect(
        self,
        replica: str,
        channel: SocketChannel,
        facts: EngineFacts | None,
        ask_prefixes: Callable[[], None],
    ) -> None:
        """Use a new engine, which is ready."""

    def disconnect(self, replica: str, loss: Loss) -> None:
        """Stop using the engine: it is dead, or its messages cannot be read."""

    def suspect(self, replica: str, in_slots: frozenset[int] | None) -> None:
        """Do without the engine, as far as possible: it does not respond."""

    def restore(self, replica: str) -> None:
        """Use the engine again, which was suspected."""

    def dismiss(self, replica: str, reason: str) -> None:
        """Remove the replica: no engine will be started there again."""

    def receive(self, replica: str, message: EngineOutputs) -> None:
        """Process the outputs of one step."""

    def receive_prefixes(self, replica: str, prefixes: PrefixList) -> None:
        """Process the list of prefixes that the engine was asked for."""

    def end_expired(self) -> None:
        """End requests whose deadline has passed while there is no engine to check it. Called often."""
