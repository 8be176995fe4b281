"""A list of replicas that may change."""

from typing import Protocol

from octavo.errors import OctavoError


class AddressesUnavailable(OctavoError):
    """The addresses cannot be listed now. Those of the last list remain valid."""


class AddressSource(Protocol):
    async def addresses(self) -> tuple[str, ...]:
        """Return the addresses as `host:port`: sorted, each once, and at least one.

        Raises AddressesUnavailable if the file or the name server has no valid list at present. An empty list
        is not valid either: a file that is being written is empty, and so is the answer of a name server
        while no replica is ready.
        """
        ...
