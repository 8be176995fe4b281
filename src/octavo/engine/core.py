"""The engine: requests in, one step at a time, tokens out. No text, no sockets, no asyncio."""

import logging
from collections.abc import Callable

import msgspec

from octavo.engine.step_times import StepTimes
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
    PrefixList,
    SamplingParams,
)
from octavo.schedule import Scheduler
from octavo.view import EngineView

logger = logging.getLogger(__name__)

Execute = Callable[[StepPlan], StepResult]

STEP_FAILED = Failure(
    FailureCode.ENGINE_FAILED, "the engine failed to compute this request; see its log for the reason"
)


class EngineCore:
    """Owned by one thread. `execute` executes a plan on all ranks; `clock` returns seconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        execute: Execute,
        clock: Callable[[], float],
        kernel_times: Callable[[], KernelTimes | None] = lambda: None,
        prepare: Callable[[bool], None] = lambda wait: None,
    ) -> None:
        """`prepare(wait)` makes, once, what some requests need later; with `wait` it returns when done."""
        self._scheduler = scheduler
        self._execute = execute
        self._clock = clock
        self._kernel_times = kernel_times
        self.prepare = prepare
        self._times = StepTimes()
        self._log: StepLog | None = None  # while the engine is watched

    def warm_up(self) -> None:
        """Run one tiny step, so that the first request does not wait for one-time work."""
        params = SamplingParams(temperature=0, max_tokens=1, seed=0)
        self.handle(GenerateRequest(request_id="warm-up", prompt_ids=(0,), params=params))
        while self.has_unfinished:
            self.step()
        self._times = StepTimes()  # its duration is not that of later steps

    def handle(self, message: GenerateRequest | Abort) -> None:
        """Add or abort a request, between steps. Raises RequestError if a request is rejected."""
        if isinstance(message, Abort):
            self._scheduler.abort(message.request_id, self._clock(), message.choice)
        else:
            self._scheduler.add(message, self._clock())

    def step(self) -> EngineOutputs:
        began = self._clock()
        plan = self._scheduler.schedule(began)
        try:
            result = self._execute_isolating(plan)
        except BaseException:  # e.g. Ctrl-C: the scheduler must be consistent for the next step
            self._scheduler.lose_step()
            raise
        now = self._clock()
        self._scheduler.apply(plan, result, now)
        num_drafted = sum([outcome.num_drafted for outcome in result.slices])
        self._times.note(plan.slices, num_drafted, now - began)
        if self._log is not None:
            self._log.note(plan, result, self._scheduler.preempted, began, now)
        change = self._scheduler.kv.take_change()
        return EngineOutputs(tuple(self._scheduler.drain()), self.stats(), prefixes=change)

    def _execute_isolating(self, plan: StepPlan) -> StepResult:
        """Execute a plan. An exception ends only the sequence that caused it."""
        try:
            return self._execute(plan)
        except Exception:
            logger.exception("a step failed, computing its sequences one at a time")
        # Computing a slice again is harmless: it writes the same KV to the same blocks.
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
            logger.exception("a sequence failed in a step of its own, ending it with an error")
            return SliceResult(failure=STEP_FAILED)

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(
            self._scheduler.stats(),
            seconds_per_prompt_token=self._times.per_prompt_token,
            seconds_per_sequence=self._times.per_sequence,
        )

    def prefixes(self) -> PrefixList:
        """Return the keys of all cached prefixes, between steps."""
        return self._scheduler.kv.prefixes()

    def log_steps(self, enabled: bool) -> None:
        """Start or stop recording steps for the next views."""
        if enabled != (self._log is not None):
            self._log = StepLog() if enabled else None

    def view(self) -> EngineView:
        """Return a view of the engine, between steps. Does not affect any result."""
        return view_of(self._scheduler, self._log, self._clock())

    def kernel_times(self) -> KernelTimes | None:
        return self._kernel_times()

    def check(self) -> None:
        """Assert every invariant of scheduler and cache."""
        self._scheduler.check()
