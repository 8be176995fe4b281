"""The engine: requests in, one step at a time, tokens out. No text, no sockets, no asyncio."""

import logging
from collections.abc import Callable

from octavo.engine.viewing import StepLog, view_of
from octavo.plan import SliceResult, StepPlan, StepResult
from octavo.protocol import (
    Abort,
    EngineOutputs,
    EngineStats,
    Failure,
    FailureCode,
    GenerateRequest,
    KernelTimes,
)
from octavo.schedule import Scheduler
from octavo.view import EngineView

logger = logging.getLogger(__name__)

Execute = Callable[[StepPlan], StepResult]

STEP_FAILED = Failure(
    FailureCode.ENGINE_FAILED, "the engine failed to compute this request; its log has the reason"
)


class EngineCore:
    """Owned by one thread. `execute` carries a plan out on all ranks; `clock` gives seconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Execute,
        clock: Callable[[], float],
        kernel_times: Callable[[], KernelTimes | None] = lambda: None,
        prepare: Callable[[bool], None] = lambda wait: None,
    ) -> None:
        """`prepare(wait)` begins, once, with what some requests need later, and waits for the end of it or
        does not."""
        self._scheduler = scheduler
        self._execute = execute
        self._clock = clock
        self._kernel_times = kernel_times
        self.prepare = prepare
        self._log: StepLog | None = None  # while somebody watches

    def handle(self, message: GenerateRequest | Abort) -> None:
        """Between steps. Raises RequestError if a request is refused."""
        if isinstance(message, Abort):
            self._scheduler.abort(message.request_id, self._clock(), message.choice)
        else:
            self._scheduler.add(message, self._clock())

    def step(self) -> EngineOutputs:
        began = self._clock()
        plan = self._scheduler.schedule(began)
        try:
            result = self._execute_isolating(plan)
        except BaseException:  # Ctrl-C: the next step must find a scheduler that knows where it stands
            self._scheduler.lose_step()
            raise
        now = self._clock()
        self._scheduler.apply(plan, result, now)
        if self._log is not None:
            self._log.note(plan, self._scheduler.preempted, began, now)
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
        return StepResult(tuple(results), self._execute(StepPlan(plan.step, (), (), ())).late)

    def _execute_slice(self, plan: StepPlan) -> SliceResult:
        try:
            return self._execute(plan).slices[0]
        except Exception:
            logger.exception("a sequence failed on its own; it is ended")
            return SliceResult(failure=STEP_FAILED)

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def log_steps(self, wanted: bool) -> None:
        """Whether the next views are to tell the steps between them."""
        if wanted != (self._log is not None):
            self._log = StepLog() if wanted else None

    def view(self) -> EngineView:
        """Between steps. Changes nothing that a step could notice."""
        return view_of(self._scheduler, self._log, self._clock())

    def kernel_times(self) -> KernelTimes | None:
        return self._kernel_times()

    def check(self) -> None:
        """Every invariant of scheduler and cache, asserted."""
        self._scheduler.check()
