"""The part of the replicas that the endpoints use, without an engine."""

from dataclasses import dataclass, field

from octavo.frontend.supervisor import EngineState
from octavo.observe.engine_tally import EngineTally, EngineTotals
from octavo.protocol import EngineFacts


@dataclass
class FakeReplicas:
    facts: EngineFacts | None
    state: EngineState = EngineState.READY
    is_live: bool = True
    engine_heartbeat: None = None
    problem: str | None = None
    num_restarts: int = 0
    totals: EngineTotals = field(default_factory=lambda: EngineTally.total([EngineTally()]))
