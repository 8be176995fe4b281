"""The heartbeat of an engine: before every step it says how long the step may take, and for whom it is."""

import time

from octavo.engine.core import Execute
from octavo.link.status_page import PATIENCE_STARTING, Phase, StatusPage
from octavo.plan import StepPlan, StepResult

PATIENCE = 4.0  # times what was measured
FADING = 0.99  # a step: one slow moment is not remembered for ever


class Pulse:
    """Learns how long steps take, and stamps the page with a multiple of it.

    A step of more tokens takes longer, but not more than in proportion, because it reads the weights once. So
    each size that was measured bounds the others: a smaller one by its own time, a larger one in proportion.
    """

    def __init__(self, page: StatusPage) -> None:
        self._page = page
        self._slowest: dict[int, float] = {}  # seconds, by the bits of the number of tokens
        self._owners: dict[int, str] = {}  # requests, by slot
        self._late: set[int] = set()  # slots whose grammars were still being worked on after the last step
        self.phase = Phase.WARMING_UP

    def around(self, execute: Execute) -> Execute:
        def execute_stamped(plan: StepPlan) -> StepResult:
            size = sum([len(piece.token_ids) for piece in plan.slices]).bit_length()
            alone = self.works_for_alone(plan)
            self._page.stamp(self.phase, patience=self.patience(size), request_id=alone)
            started = time.monotonic()
            result = execute(plan)
            self.learn(size, time.monotonic() - started)
            self._late = set(result.late)
            return result

        return execute_stamped

    def works_for_alone(self, plan: StepPlan) -> str:
        """The one request that the step works for; empty if there are several, or none.

        A grammar that is late is worked on during the steps that its sequence sits out.
        """
        self._late.difference_update(plan.closed)
        for opening in plan.opened:
            self._owners[opening.slot] = opening.request_id
        slots = [piece.slot for piece in plan.slices] + [opening.slot for opening in plan.opened]
        owners = {self._owners.get(slot, "") for slot in (*slots, *self._late)}
        return owners.pop() if len(owners) == 1 else ""

    def learn(self, size: int, seconds: float) -> None:
        self._slowest[size] = max(seconds, FADING * self._slowest.get(size, 0.0))

    def patience(self, size: int) -> float:
        bounds = [seconds * 2 ** max(0, size - seen) for seen, seconds in self._slowest.items()]
        return PATIENCE * min(bounds) if bounds else PATIENCE_STARTING
