"""Replicas with one fingerprint, as a request sees them."""

from dataclasses import dataclass

from octavo.frontend.hub import Hub
from octavo.frontend.intake import Intake
from octavo.protocol import EngineFacts


@dataclass(frozen=True)
class RequestPool:
    """A request stays in the pool that it was submitted to: another one would continue with other tokens."""

    hub: Hub
    facts: EngineFacts  # of all its engines
    intake: Intake  # checks requests against these facts

    @property
    def fingerprint(self) -> str:
        return self.facts.system_fingerprint
