"""The engine: requests in, one step at a time, tokens out. No text, no sockets, no asyncio."""

from collections.abc import Callable

from octavo.plan import StepPlan, StepResult
from octavo.protocol import Abort, EngineOutputs, EngineStats, GenerateRequest
from octavo.schedule import Scheduler


class EngineCore:
    """Owned by one thread. `execute` carries a plan out on all ranks; `clock` gives seconds."""

    def __init__(
        self, scheduler: Scheduler, execute: Callable[[StepPlan], StepResult], clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._execute = execute
        self._clock = clock

    def handle(self, message: GenerateRequest | Abort) -> None:
        """Between steps. Raises RequestError if a request is refused."""
        if isinstance(message, Abort):
            self._scheduler.abort(message.request_id, self._clock(), message.choice)
        else:
            self._scheduler.add(message, self._clock())

    def step(self) -> EngineOutputs:
        plan = self._scheduler.schedule(self._clock())
        try:
            result = self._execute(plan)
        except BaseException:  # Ctrl-C too: the next step must find a scheduler that knows where it stands
            self._scheduler.lose_step()
            raise
        self._scheduler.apply(plan, result, self._clock())
        return EngineOutputs(tuple(self._scheduler.drain()), self._scheduler.stats())

    @property
    def has_unfinished(self) -> bool:
        return self._scheduler.has_unfinished

    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def check(self) -> None:
        """Every invariant of scheduler and cache, asserted."""
        self._scheduler.check()
