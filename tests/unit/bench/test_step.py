"""The minimum work of a step, and measured steps of a tiny model."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.bench.measure import MachineLimits, MinimumWork
from octavo.bench.random_model import SHAPES, write_random_model
from octavo.bench.step import StepCase, StepRunner, StepScale, measure_steps, step_work
from octavo.models.config import LayerConfig, ModelConfig

CONFIG = ModelConfig.from_huggingface({"architectures": ["LlamaForCausalLM"], **SHAPES["llama-3.2-1b"]})
TINY = ModelConfig.from_huggingface({"architectures": ["LlamaForCausalLM"], **SHAPES["tiny"]})

PARAMETERS = 1_235_746_816  # of Llama 3.2 1B without its norms


class SteadyMachine:
    best_peak = 1e12

    def probe(self) -> MachineLimits:
        return MachineLimits(1e10, self.best_peak)


def test_a_decode_step_reads_the_weights_once() -> None:
    one, many = (step_work(CONFIG, 2 * PARAMETERS, 2, StepCase(batch, 1, 256)) for batch in (1, 16))
    kv = 2 * 16 * 8 * 64 * 2 * 257  # keys and values of 16 layers: 256 read, 1 written
    assert one.num_bytes == 2 * PARAMETERS + kv + 8 * 128256
    assert many.num_bytes - one.num_bytes == 15 * (kv + 8 * 128256)
    assert one.flops == 2 * PARAMETERS + 4 * 16 * 2048 * 256
    assert many.flops == 16 * one.flops


def test_prefill_attention_is_triangular_and_samples_once() -> None:
    work = step_work(CONFIG, 2 * PARAMETERS, 2, StepCase(1, 1024, 1024))
    layers = PARAMETERS - 2048 * 128256
    assert work.flops == 2 * (1024 * layers + 2048 * 128256) + 4 * 16 * 2048 * (1024 * 1025 // 2)


def test_a_sliding_window_limits_the_work() -> None:
    windowed = dataclasses.replace(TINY, layers=tuple(LayerConfig(32, layer.rope) for layer in TINY.layers))
    long, short = (step_work(windowed, 0, 2, StepCase(1, 1, context)) for context in (4096, 32))
    assert long == short == step_work(TINY, 0, 2, StepCase(1, 1, 32))
    assert (
        step_work(windowed, 0, 2, StepCase(1, 64, 64)).flops
        < step_work(TINY, 0, 2, StepCase(1, 64, 64)).flops
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny"
    write_random_model("random:tiny", path)
    return path


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), kv_memory="16MiB", max_step_tokens=100, max_running=8) as llm:
        yield llm


def test_decode_runs_stay_near_the_nominal_context_with_chunked_prompts(llm: LLM) -> None:
    step_runner = StepRunner(llm, TINY, 1000, 2, SamplingParams(temperature=0.0))
    run = step_runner.decoding(StepCase(8, 1, 64), max_runs=10)
    before = llm.stats()
    works = [run().work for _ in range(10)]
    after = llm.stats()
    assert after.tokens_computed - before.tokens_computed == 80  # only decoding
    assert works == [step_work(TINY, 1000, 2, StepCase(8, 1, context)) for context in _contexts(works)]
    assert min(works, key=lambda work: work.num_bytes) == works[0]
    step_runner.close()


def _contexts(works: list[MinimumWork]) -> list[int]:
    """Return ten consecutive context lengths that include the nominal one."""
    for first in range(50, 70):
        if works[0] == step_work(TINY, 1000, 2, StepCase(8, 1, first)):
            assert first <= 64 < first + 10
            return list(range(first, first + 10))
    raise AssertionError("the first run is not near its context")


def test_results_are_consistent(folder: Path) -> None:
    step_runners = []
    for kernels in ("auto", "torch"):
        llm = LLM(str(folder), kv_memory="16MiB", kernels=kernels, max_step_tokens=256)
        step_runners.append(StepRunner(llm, TINY, 1000, 2, SamplingParams(temperature=0.8, top_p=0.9)))
    cases = [StepCase(1, 1, 40), StepCase(4, 1, 40), StepCase(1, 256, 256)]
    results = list(measure_steps(cases, step_runners, SteadyMachine(), StepScale(num_turns=2, max_wait=0.0)))
    for step_runner in step_runners:
        step_runner.close()
    assert [result.name for result in results] == ["decode 1 x 40", "decode 4 x 40", "prefill 1 x 256"]
    for result in results:
        assert sum(result.shares.values()) == pytest.approx(1.0)
        assert all(0.0 <= share <= 1.0 for share in result.shares.values())
        assert result.fraction > 0
        assert result.speedup is not None
        assert result.speedup > 0
    assert results[0].bound == results[1].bound == "memory"
