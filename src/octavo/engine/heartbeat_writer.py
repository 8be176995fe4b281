"""Write the engine's heartbeat before every step: how long the step may take, and for which requests."""

import time

from octavo.engine.core import Execute
from octavo.link.heartbeat import STARTING_TIMEOUT, HeartbeatFile, Phase
from octavo.plan import StepPlan, StepResult

TIMEOUT_FACTOR = 4.0  # multiple of the measured time
DECAY = 0.99  # per step, so that one slow step does not count forever


class HeartbeatWriter:
    """Measures how long steps take, and writes heartbeats with a multiple of that as timeout.

    A step with more tokens takes longer, but at most in proportion, because it reads the weights once. So
    each measured size bounds the others: a smaller step takes at most the same time, a larger one at most
    proportionally more.
    """

    def __init__(self, heartbeat: HeartbeatFile) -> None:
        self._heartbeat = heartbeat
        self._slowest: dict[int, float] = {}  # seconds, by bit length of the number of tokens
        self._owners: dict[int, str] = {}  # request ids, by slot
        self._late: set[int] = set()  # slots whose grammars were not ready after the last step
        self.phase = Phase.WARMING_UP

    def around(self, execute: Execute) -> Execute:
        def execute_with_heartbeat(plan: StepPlan) -> StepResult:
            size = sum([len(piece.token_ids) for piece in plan.slices]).bit_length()
            request_id = self.sole_request(plan)
            for slot in plan.closed:
                self._heartbeat.write_slot(slot, None)
            for opening in plan.opened:
                self._heartbeat.write_slot(opening.slot, opening.request_id)
            self._heartbeat.write(self.phase, timeout=self.timeout(size), request_id=request_id)
            started = time.monotonic()
            result = execute(plan)
            self.learn(size, time.monotonic() - started)
            self._late = set(result.late)
            return result

        return execute_with_heartbeat

    def sole_request(self, plan: StepPlan) -> str:
        """Return the only request that the step computes; empty if there are several, or none.

        Requests with a late grammar count too: the grammar is computed during steps that skip its sequence.
        """
        self._late.difference_update(plan.closed)
        for opening in plan.opened:
            self._owners[opening.slot] = opening.request_id
        slots = [piece.slot for piece in plan.slices] + [opening.slot for opening in plan.opened]
        owners = {self._owners.get(slot, "") for slot in (*slots, *self._late)}
        return owners.pop() if len(owners) == 1 else ""

    def learn(self, size: int, seconds: float) -> None:
        self._slowest[size] = max(seconds, DECAY * self._slowest.get(size, 0.0))

    def timeout(self, size: int) -> float:
        bounds = [seconds * 2 ** max(0, size - seen) for seen, seconds in self._slowest.items()]
        return TIMEOUT_FACTOR * min(bounds) if bounds else STARTING_TIMEOUT
