"""Benchmarks of whole engine steps, from scheduling to the sampled token, compared with the step's roofline.

bytes = every weight once, as stored + keys and values read and written + logits written and read
operations = 2 x rows x weights + 4 x query heads x head size x keys attended to
minimum seconds = max(bytes / bandwidth, operations / peak)
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from octavo.bench.measure import MAX_TURNS, Candidate, Machine, Measurement, MinimumWork, Run, measure
from octavo.llm import LLM
from octavo.models.config import ModelConfig
from octavo.protocol import KernelTimes, SamplingParams

F32 = 4  # bytes
WARM_UP = 3  # steps
KINDS = KernelTimes.__struct_fields__


@dataclass(frozen=True)
class StepCase:
    """`batch` sequences with `num_rows` new tokens each; the last token attends to `context` tokens."""

    batch: int
    num_rows: int
    context: int

    @property
    def name(self) -> str:
        kind, tokens = ("decode", self.context) if self.num_rows == 1 else ("prefill", self.num_rows)
        return f"{kind} {self.batch} x {tokens}"


@dataclass(frozen=True)
class StepScale:
    num_turns: int = 15
    max_wait: float = 4.0  # seconds to wait for AMX to return to full speed


QUICK = StepScale(num_turns=3, max_wait=0.2)


@dataclass(frozen=True)
class StepFigures:
    """One line of the table. Times are medians; `fraction` and `speedup` are medians of paired ratios."""

    name: str
    milliseconds: float
    tokens_per_second: float
    roofline_milliseconds: float
    fraction: float
    bound: str
    gigabytes: float
    gigaflop: float
    limit_gigabytes_per_second: float
    limit_gigaflops: float
    shares: dict[str, float]  # of the step's time, by kind of kernel and "python"; they add up to 1
    baseline_milliseconds: float | None
    speedup: float | None  # the baseline's time divided by ours
    num_turns: int
    num_dropped: int
    is_throttled: bool


def step_work(config: ModelConfig, weight_bytes: int, item_bytes: int, case: StepCase) -> MinimumWork:
    """Return the minimum work of a step.

    `weight_bytes` are those of the layers and the head; `item_bytes` is the size of one element of a key or
    value. Embedding rows and activations are not counted: they are small or in the cache.
    """
    query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * query_width + 2 * kv_width + 3 * config.intermediate_size)
    head = config.hidden_size * config.vocab_size
    rows, first = case.batch * case.num_rows, case.context - case.num_rows
    keys_read = keys_seen = 0
    for one in config.layers:
        window = one.window or case.context
        keys_read += case.batch * min(case.context, window + case.num_rows - 1)
        keys_seen += case.batch * sum(min(first + row + 1, window) for row in range(case.num_rows))
    kv = item_bytes * 2 * kv_width * (keys_read + config.num_layers * rows)
    logits = 2 * F32 * case.batch * config.vocab_size
    return MinimumWork(
        weight_bytes + kv + logits,
        2.0 * (rows * config.num_layers * layer + case.batch * head) + 4.0 * query_width * keys_seen,
    )


class StepRunner:
    """Makes candidates of an engine: one run is one step of a case."""

    def __init__(
        self, llm: LLM, config: ModelConfig, weight_bytes: int, item_bytes: int, params: SamplingParams
    ) -> None:
        """`weight_bytes` and `item_bytes` are as in `step_work`."""
        self._llm = llm
        self._config = config
        self._weight_bytes = weight_bytes
        self._item_bytes = item_bytes
        self._params = msgspec.structs.replace(params, ignore_eos=True, seed=0)
        self._ids: list[str] = []
        self._draw = random.Random(0)

    def decoding(self, case: StepCase, max_runs: int) -> Candidate:
        """Return a candidate that decodes one token for all sequences together.

        The sequences grow with each run; halfway through `max_runs`, their context is `case.context`.
        """
        self._end()
        length = max(1, case.context - WARM_UP - max_runs // 2)
        before = self._llm.stats()
        self._add(case.batch, length, 2 * WARM_UP + 2 * max_runs)

        def num_sampled() -> int:
            return self._llm.stats().tokens_sampled - before.tokens_sampled

        def num_computed() -> int:
            now = self._llm.stats()
            computed = now.tokens_computed + now.prompt_tokens_cached
            return computed - before.tokens_computed - before.prompt_tokens_cached

        # The first token is sampled once the n prompt tokens are computed; then both counts grow together.
        while num_computed() - num_sampled() < case.batch * (length - 1):
            self._llm.step()
        for _ in range(WARM_UP):
            self._llm.step()
        return lambda: self._timed(StepCase(case.batch, 1, length + round(num_sampled() / case.batch)))

    def prefilling(self, case: StepCase) -> Candidate:
        """Return a candidate that computes new prompts in each run, so that none is in the cache."""
        self._end()

        def run() -> Run:
            self._add(case.batch, case.num_rows, 1)
            result = self._timed(case)
            self._end()
            return result

        run()
        return run

    def close(self) -> None:
        self._end()
        self._llm.close()

    def _timed(self, case: StepCase) -> Run:
        before, start = self._llm.kernel_times(), time.perf_counter()
        self._llm.step()
        seconds, after = time.perf_counter() - start, self._llm.kernel_times()
        work = step_work(self._config, self._weight_bytes, self._item_bytes, case)
        if before is None or after is None:
            return Run(seconds, work)
        times = after - before
        return Run(seconds, work, {kind: getattr(times, kind).seconds for kind in KINDS})

    def _add(self, batch: int, length: int, num_tokens: int) -> None:
        params = msgspec.structs.replace(self._params, max_tokens=num_tokens)
        for _ in range(batch):
            prompt = [self._draw.randrange(self._config.vocab_size) for _ in range(length)]
            self._ids.append(self._llm.add_request(prompt, params))

    def _end(self) -> None:
        for request_id in self._ids:
            self._llm.abort(request_id)
        self._ids = []
        while self._llm.has_unfinished:
            self._llm.step()


def measure_steps(
    cases: Sequence[StepCase], step_runners: Sequence[StepRunner], machine: Machine, scale: StepScale
) -> Iterator[StepFigures]:
    """Yield the result of each case. The first runner is measured; a second one is the baseline."""
    for case in cases:
        if case.num_rows == 1:
            candidates = [
                step_runner.decoding(case, MAX_TURNS * scale.num_turns) for step_runner in step_runners
            ]
        else:
            candidates = [step_runner.prefilling(case) for step_runner in step_runners]
        measured = measure(machine, candidates, num_turns=scale.num_turns, max_wait=scale.max_wait)
        yield _result(case, measured, has_baseline=len(step_runners) > 1)


def _result(case: StepCase, measured: Measurement, *, has_baseline: bool) -> StepFigures:
    seconds, limits, work = measured.seconds(), measured.limits, measured.work()
    shares = {kind: measured.share(kind) for kind in KINDS}
    return StepFigures(
        name=case.name,
        milliseconds=seconds * 1e3,
        tokens_per_second=case.batch * case.num_rows / seconds,
        roofline_milliseconds=work.min_seconds(limits) * 1e3,
        fraction=measured.fraction(lambda run: run.seconds),
        bound="memory" if work.is_memory_bound(limits) else "compute",
        gigabytes=work.num_bytes / 1e9,
        gigaflop=work.flops / 1e9,
        limit_gigabytes_per_second=limits.bandwidth / 1e9,
        limit_gigaflops=limits.peak / 1e9,
        shares=shares | {"python": 1.0 - sum(shares.values())},
        baseline_milliseconds=measured.seconds(1) * 1e3 if has_baseline else None,
        speedup=measured.ratio(1, 0) if has_baseline else None,
        num_turns=len(measured.turns),
        num_dropped=measured.num_dropped,
        is_throttled=measured.is_throttled,
    )


def use_torch_threads(llm: LLM, num_threads: int) -> None:
    """Set torch's number of threads on the thread that runs the engine's steps: it is per thread."""
    torch.set_num_threads(num_threads)
    llm.generate([0], SamplingParams(max_tokens=1, temperature=0))
