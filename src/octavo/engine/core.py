"""The engine: requests in, one step at a time, tokens out. No text, no sockets, no asyncio."""

import logging
from collections.abc import Callable

from octavo.plan import SliceResult, StepPlan, StepResult
from octavo.protocol import Abort, EngineOutputs, EngineStats, GenerateRequest, KernelTimes
from octavo.schedule import Scheduler

logger = logging.getLogger(__name__)

Execute = Callable[[StepPlan], StepResult]

STEP_FAILED = "the engine failed to compute this request; its log has the reason"


class EngineCore:
    """Owned by one thread. `execute` carries a plan out on all ranks; `clock` gives seconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Execute,
        clock: Callable[[], float],
        kernel_times: Callable[[], KernelTimes | None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._execute = execute
        self._clock = clock
        self._kernel_times = kernel_times

    def handle(self, message: GenerateRequest | Abort) -> None:
        """Between steps. Raises RequestError if a request is refused."""
        if isinstance(message, Abort):
            self._scheduler.abort(message.request_id, self._clock(), message.choice)
        else:
            self._scheduler.add(message, self._clock())

    def step(self) -> EngineOutputs:
        plan = self._scheduler.schedule(self._clock())
        try:
            result = self._execute_isolating(plan)
        except BaseException:  # Ctrl-C: the next step must find a scheduler that knows where it stands
            self._scheduler.lose_step()
            raise
        self._scheduler.apply(plan, result, self._clock())
        return EngineOutputs(tuple(self._scheduler.drain()), self._scheduler.stats())

    def _execute_isolating(self, plan: StepPlan) -> StepResult:
        """Whatever a sequence makes the workers raise ends that sequence alone."""
        try:
            return self._execute(plan)
        except Exception:
            logger.exception("a step failed; its sequences are now computed one by one")
        # To compute a slice again is harmless: it writes the same KV to the same pages.
        openings = {opening.slot: opening for opening in plan.opened}
        alone = [openings.pop(piece.slot, None) for piece in plan.slices]
        self._execute(StepPlan(plan.step, plan.closed, tuple(openings.values()), ()))
        results = [
            self._execute_slice(StepPlan(plan.step, (), (opening,) if opening else (), (piece,)))
            for opening, piece in zip(alone, plan.slices, strict=True)
        ]
        return StepResult(tuple(results))

    def _execute_slice(self, plan: StepPlan) -> SliceResult:
        try:
            return self._execute(plan).slices[0]
        except Exception:
            logger.exception("a sequence failed on its own; it is ended")
            return SliceResult(error=STEP_FAILED)

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def kernel_times(self) -> KernelTimes | None:
        return self._kernel_times()

    def check(self) -> None:
        """Every invariant of scheduler and cache, asserted."""
        self._scheduler.check()
