"""A model with quantised weights gives the same bits as with widened weights, on every instruction set."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.bench.random_gguf import write_random_gguf
from octavo.kernels.library import KernelLibrary, find_library
from octavo.weight_format import FORMATS

CONFIG = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}
MIXTURE = ("Q4_K", "Q6_K", "Q4_K", "Q5_0", "Q8_0", "IQ4_XS", "Q2_K")
GGUF_FORMATS = [name for name in FORMATS if not name.startswith(("INT", "FP"))]
PROMPTS = [list(range(3, 40)), [7] * 5, list(range(100, 250)), [1]]
PARAMS = SamplingParams(max_tokens=12, temperature=0.7, seed=11, logprobs=5)

Answers = list[tuple[tuple[int, ...], object]]


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    path = find_library()
    if path is None:
        pytest.skip("no native library was built when the package was installed")
    return KernelLibrary(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def write(*formats: str, tied: bool = True) -> Path:
        """Write a model whose matrices use these formats in turn."""
        turns = iter(range(1000))
        path = tmp_path_factory.mktemp("kept") / "model.gguf"
        write_random_gguf(
            path,
            CONFIG | {"tie_word_embeddings": tied},
            lambda _: formats[next(turns) % len(formats)],
        )
        return path

    return write


def answers(path: Path, **options: Any) -> tuple[Answers, LLM]:
    with LLM(str(path), kv_memory="8MiB", threads=2, max_step_tokens=64, **options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
    return [(output.choices[0].token_ids, output.choices[0].logprobs) for output in outputs], llm


@pytest.mark.parametrize("format", GGUF_FORMATS)
def test_every_format_gives_the_bits_of_its_widened_weights(
    format: str, library: KernelLibrary, model: Callable[..., Path]
) -> None:
    path = model(format)
    widened, llm = answers(path, weights="widened")
    assert set(llm.facts.weight_bytes) == {"bfloat16", "float32"}
    assert len({tokens for tokens, _ in widened}) > 1
    for isa in library.isas:
        kept, kept_llm = answers(path, kernels=isa.name.lower())
        assert set(kept_llm.facts.weight_bytes) == {format, "float32"}
        assert kept == widened
        assert kept_llm.facts.system_fingerprint == llm.facts.system_fingerprint


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tape", [True, False])
def test_mixed_formats_in_fused_matrices_give_the_bits_of_widened_weights(
    tied: bool, tape: bool, library: KernelLibrary, model: Callable[..., Path]
) -> None:
    path = model(*MIXTURE, tied=tied)
    widened, _ = answers(path, weights="widened", tape=tape)
    for isa in library.isas:
        kept, llm = answers(path, kernels=isa.name.lower(), tape=tape)
        assert set(llm.facts.weight_bytes) == {*MIXTURE, "float32"}
        assert kept == widened


def test_the_log_reports_kept_and_widened_weights(
    library: KernelLibrary, model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = model("Q8_0", "Q4_K")
    caplog.set_level(logging.INFO, "octavo")

    def logged(**options: Any) -> list[str]:
        caplog.clear()
        answers(path, **options)
        return [record.getMessage() for record in caplog.records if "widened" in record.getMessage()]

    assert logged() == []
    assert any(record.getMessage().startswith("weights: ") for record in caplog.records)
    (line,) = logged(dtype="float32")
    reason = "quantised weights are kept with --dtype bfloat16 only"
    assert line.startswith(f"widened to float32, {reason}: Q4_K, Q8_0, ")
    (line,) = logged(weights="widened")
    assert line.startswith("widened to bfloat16, as requested: Q4_K, Q8_0, ")
    (line,) = logged(kernels="torch")
    assert line.startswith("widened to bfloat16, there are no kernels for them here: Q4_K, Q8_0, ")
