"""The heartbeat of an engine: before every step it says how long the step may take."""

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
        self.phase = Phase.WARMING_UP

    def around(self, execute: Execute) -> Execute:
        def execute_stamped(plan: StepPlan) -> StepResult:
            size = sum([len(piece.token_ids) for piece in plan.slices]).bit_length()
            self._page.stamp(self.phase, patience=self.patience(size))
            started = time.monotonic()
            result = execute(plan)
            self.learn(size, time.monotonic() - started)
            return result

        return execute_stamped

    def learn(self, size: int, seconds: float) -> None:
        self._slowest[size] = max(seconds, FADING * self._slowest.get(size, 0.0))

    def patience(self, size: int) -> float:
        bounds = [seconds * 2 ** max(0, size - seen) for seen, seconds in self._slowest.items()]
        return PATIENCE * min(bounds) if bounds else PATIENCE_STARTING
