"""The part of the replicas that the endpoints use, without an engine."""

from dataclasses import dataclass, field
from typing import Any

from octavo.frontend.hub import Hub
from octavo.frontend.supervisor import EngineState
from octavo.observe.engine_tally import EngineTally, EngineTotals
from octavo.protocol import EngineFacts


@dataclass
class FakeReplicas:
    facts: EngineFacts | None
    hub: Any = field(default_factory=Hub)
    state: EngineState = EngineState.READY
    is_live: bool = True
    engine_heartbeat: None = None
    problem: str | None = None
    num_restarts: int = 0
    totals: EngineTotals = field(default_factory=lambda: EngineTally.total([EngineTally()]))

    @property
    def num_moves(self) -> int:
        return int(self.hub.num_moves)

    @property
    def audit_counts(self) -> Any:
        return self.hub.audit_counts

    @property
    def hubs(self) -> tuple[Any, ...]:
        return (self.hub,)
