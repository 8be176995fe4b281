"""Measure the scheduler's own time per step under load, for the benchmark and the test of its limits."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.cache import KVManager
from octavo.plan import SliceResult, StepResult
from octavo.protocol import GenerateRequest, SamplingParams
from octavo.schedule import Scheduler, SchedulerConfig

BLOCK_SIZE = 32
MAX_MODEL_LEN = 8192
MAX_STEP_TOKENS = 2048
WARM_UP_STEPS = 150  # until all slots are in use and sequences end as often as they start
DRAWN = SliceResult((5,))
NOT_DRAWN = SliceResult()


@dataclass(frozen=True)
class SchedulerLoad:
    """The load of the scheduler during the measurement."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_tenants: int = 1


class LoadedScheduler:
    """A scheduler whose queue is refilled as requests end."""

    def __init__(self, load: SchedulerLoad, seed: int = 0) -> None:
        self.load = load
        self.milliseconds: list[float] = []
        self._rng = random.Random(seed)
        self._count = 0
        config = SchedulerConfig(load.num_running, MAX_MODEL_LEN, MAX_STEP_TOKENS)
        self._scheduler = Scheduler(config, KVManager(load.num_blocks, BLOCK_SIZE))
        self._add(load.num_running + load.num_waiting)

    def step(self) -> None:
        scheduler = self._scheduler
        start = time.perf_counter()
        plan = scheduler.schedule(0.0)
        planned = time.perf_counter()
        result = StepResult(tuple([DRAWN if piece.num_sampled else NOT_DRAWN for piece in plan.slices]))
        computed = time.perf_counter()
        scheduler.apply(plan, result, 0.0)
        outputs = scheduler.drain()
        end = time.perf_counter()
        self.milliseconds.append((planned - start + end - computed) * 1e3)
        self._add(sum(output.finish is not None for output in outputs))

    def check_load(self) -> None:
        """Check that the queue has the requested length and that at least 95 % of the slots are in use."""
        stats = self._scheduler.stats()
        assert stats.num_running + stats.num_waiting == self.load.num_running + self.load.num_waiting
        assert stats.num_running > 0.95 * self.load.num_running, stats

    def _add(self, count: int) -> None:
        rng = self._rng
        for _ in range(count):
            self._count += 1
            prompt = tuple(rng.choices(range(50_000), k=rng.randint(20, 200)))
            params = SamplingParams(max_tokens=rng.randint(100, 400), seed=1)
            request = GenerateRequest(
                request_id=str(self._count),
                prompt_ids=prompt,
                params=params,
                stop_ids=(2,),
                tenant=f"tenant {self._count % self.load.num_tenants}",
            )
            self._scheduler.add(request, 0.0)


def step_milliseconds(loads: Sequence[SchedulerLoad], num_steps: int) -> list[list[float]]:
    """Return the milliseconds of schedule + apply + drain of each step under each load.

    Steps of all loads alternate, so that other activity on the machine affects all of them equally.
    """
    loaded = [LoadedScheduler(load) for load in loads]
    for step in range(WARM_UP_STEPS + num_steps):
        for one in loaded:
            one.step()
            if step >= WARM_UP_STEPS and step % 50 == 0:
                one.check_load()
    return [one.milliseconds[WARM_UP_STEPS:] for one in loaded]
