"""The engine continues after a failed step, and no tokens change."""

from collections.abc import Callable

import pytest

from octavo.cache import KVManager
from octavo.engine import EngineCore
from octavo.plan import SliceResult, StepPlan, StepResult
from octavo.protocol import GenerateRequest, SamplingParams
from octavo.schedule import Scheduler, SchedulerConfig


def request(name: str, prompt: tuple[int, ...]) -> GenerateRequest:
    return GenerateRequest(
        request_id=name, prompt_ids=prompt, params=SamplingParams(max_tokens=9, seed=0), stop_ids=()
    )


class HistoryWorker:
    """Returns a hash of all previous tokens, which it keeps per slot like a real worker."""

    def __init__(self) -> None:
        self.history: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for slot in plan.closed:
            self.history.pop(slot, None)
        for opening in plan.opened:
            self.history[opening.slot] = list(opening.token_ids)
        results = []
        for piece in plan.slices:
            if piece.num_sampled:
                history = self.history[piece.slot]
                assert piece.start + len(piece.token_ids) == len(history)
                history.append(hash(tuple(history)) % 1000)
                results.append(SliceResult((history[-1],)))
            else:
                results.append(SliceResult())
        return StepResult(tuple(results))


def run(execute_with: Callable[[HistoryWorker], Callable[[StepPlan], StepResult]]) -> dict[str, list[int]]:
    kv = KVManager(num_blocks=12, block_size=4)
    scheduler = Scheduler(SchedulerConfig(max_running=2, max_model_len=32, max_step_tokens=6), kv)
    core = EngineCore(scheduler, execute_with(HistoryWorker()), lambda: 0.0)
    tokens: dict[str, list[int]] = {}
    for number in range(4):
        core.handle(request(f"r{number}", tuple(range(number, number + 9))))
        tokens[f"r{number}"] = []
    while core.has_unfinished:
        try:
            outputs = core.step().outputs
        except (KeyboardInterrupt, MemoryError):
            continue
        finally:
            core.check()
        for output in outputs:
            tokens[output.request_id] += output.token_ids
    assert core.stats().blocks_free + core.stats().blocks_cached == 12
    return tokens


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_step_changes_no_token(error: type[BaseException], after: bool) -> None:
    """`after`: the workers had executed the step when its result was lost."""

    def flaky(worker: HistoryWorker) -> Callable[[StepPlan], StepResult]:
        def execute(plan: StepPlan) -> StepResult:
            lost = plan.step % 3 == 2
            if lost and not after:
                raise error
            result = worker.execute(plan)
            if lost:
                raise error
            return result

        return execute

    assert run(flaky) == run(lambda worker: worker.execute)


def test_the_duration_of_the_warm_up_is_not_measured() -> None:
    """Otherwise a replica whose warm-up was slow would get fewer requests than others."""
    scheduler = Scheduler(
        SchedulerConfig(max_running=2, max_model_len=32, max_step_tokens=6), KVManager(12, 4)
    )
    times = iter(range(1000))
    core = EngineCore(scheduler, HistoryWorker().execute, lambda: float(next(times)))
    core.warm_up()
    stats = core.stats()
    assert stats.steps == 1
    assert (stats.seconds_per_prompt_token, stats.seconds_per_sequence) == (0.0, 0.0)
    core.handle(request("r0", tuple(range(5))))
    while core.has_unfinished:
        core.step()
    assert core.stats().seconds_per_sequence > 0
