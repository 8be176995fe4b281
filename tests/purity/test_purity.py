"""The law: tokens and logprobs are bitwise those of the plain run, whatever happens around a request.

The plain run: alone, in one piece, nothing cached, on one thread. All else must equal it to the last bit.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers

from octavo import LLM, RequestOutput, SamplingParams
from octavo.kernels import gemm, rows
from octavo.kernels.library import Engine, Isa, KernelLibrary, find_library

SIZES = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_hidden_layers=2),
    "mistral": lambda: transformers.MistralConfig(**SIZES, num_hidden_layers=2, sliding_window=40),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, num_hidden_layers=2, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, num_hidden_layers=2, head_dim=32),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **(SIZES | {"num_key_value_heads": 1}),
        num_hidden_layers=3,
        head_dim=48,
        query_pre_attn_scalar=48,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}

# Short and long, greedy and sampled, alike at the beginning, with penalties, with two choices.
PROMPTS = [
    [(7 * j + (0 if j < 64 and number % 3 else number)) % 250 for j in range(1 + 17 * number)]
    for number in range(10)
]
PARAMS = [
    SamplingParams(
        temperature=[0.0, 1.0, 0.7][number % 3],
        top_p=[1.0, 0.9][number % 2],
        repetition_penalty=[1.0, 1.2][number % 4 == 1],
        n=[1, 2][number == 4],
        seed=number,
        max_tokens=10,
        ignore_eos=True,
        logprobs=2,
    )
    for number in range(10)
]
Answers = list[list[tuple[Any, ...]]]


def answers(outputs: list[RequestOutput]) -> Answers:
    """Everything that must be equal, floats by their bits."""
    return [[(c.token_ids, c.text, c.logprobs) for c in output.choices] for output in outputs]


def plain_answers(path: Path, dtype: str, kernels: str, **more: Any) -> Answers:
    options = {"prefix_caching": False, "max_step_tokens": 0, "threads": 1, "kv_memory": "64MiB"} | more
    with LLM(str(path), dtype=dtype, kernels=kernels, progress=False, **options) as llm:
        return answers([llm.generate([p], s)[0] for p, s in zip(PROMPTS, PARAMS, strict=True)])


@contextmanager
def loaded(path: Path, dtype: str, kernels: str, **options: Any) -> Iterator[LLM]:
    with LLM(
        str(path), dtype=dtype, kernels=kernels, progress=False, **({"kv_memory": "64MiB"} | options)
    ) as llm:
        yield llm
        llm.check()


def in_one_batch(path: Path, dtype: str, kernels: str) -> Answers:
    with loaded(path, dtype, kernels, threads=2) as llm:
        return answers(llm.generate(PROMPTS, PARAMS))


def from_a_warm_cache(path: Path, dtype: str, kernels: str) -> Answers:
    with loaded(path, dtype, kernels, threads=2) as llm:
        llm.generate(PROMPTS, PARAMS)
        outputs = llm.generate(PROMPTS, PARAMS)
        assert sum(output.num_cached for output in outputs) > 300
        return answers(outputs)


def in_chunks(size: int) -> Callable[[Path, str, str], Answers]:
    def run(path: Path, dtype: str, kernels: str) -> Answers:
        with loaded(path, dtype, kernels, threads=2, max_step_tokens=size, max_running=min(size, 8)) as llm:
            return answers(llm.generate(PROMPTS, PARAMS))

    return run


def with_every_kernel_called_from_python(path: Path, dtype: str, kernels: str) -> Answers:
    with loaded(path, dtype, kernels, threads=2, tape=False) as llm:
        return answers(llm.generate(PROMPTS, PARAMS))


def preempted_by_urgent_ones(path: Path, dtype: str, kernels: str) -> Answers:
    with loaded(path, dtype, kernels, threads=2, max_running=2, max_step_tokens=64) as llm:
        finished: dict[str, RequestOutput] = {}
        for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
            llm.add_request(prompt, params, request_id=str(number), priority=-number)
            for _ in range(4):
                finished |= {output.request_id: output for output in llm.step().finished}
        while llm.has_unfinished:
            finished |= {output.request_id: output for output in llm.step().finished}
        assert llm.stats().preemptions >= 5, llm.stats()
        return answers([finished[str(number)] for number in range(len(PROMPTS))])


def resumed_from_emitted_tokens(path: Path, dtype: str, kernels: str) -> Answers:
    """As after a crash: the first tokens were sent, and a new engine goes on from there."""
    with loaded(path, dtype, kernels, threads=2) as llm:
        whole = llm.generate(PROMPTS, PARAMS)
    resumed = []
    with loaded(path, dtype, kernels, threads=2) as llm:
        for prompt, params, before in zip(PROMPTS, PARAMS, whole, strict=True):
            prepared = llm._prepare(prompt, params)
            messages = tuple(
                msgspec.structs.replace(message, resume_ids=before.choices[message.choice].token_ids[:4])
                for message in prepared.messages
            )
            (after,) = llm._run([dataclasses.replace(prepared, messages=messages)], False)
            resumed.append(
                [
                    (
                        one.token_ids[:4] + two.token_ids,
                        one.text,
                        (one.logprobs or ())[:4] + (two.logprobs or ()),
                    )
                    for one, two in zip(before.choices, after.choices, strict=True)
                ]
            )
    return resumed


WAYS: dict[str, Callable[[Path, str, str], Answers]] = {
    "in one batch": in_one_batch,
    "from a warm cache": from_a_warm_cache,
    "in chunks of 1": in_chunks(1),
    "in chunks of 33": in_chunks(33),
    "in chunks of 128": in_chunks(128),
    "eager": with_every_kernel_called_from_python,
    "preempted": preempted_by_urgent_ones,
    "resumed": resumed_from_emitted_tokens,
}


def available_isas() -> list[str]:
    path = find_library()
    best = -1 if path is None else KernelLibrary(path).best_isa
    return [isa.name.lower() for isa in Isa if isa <= best]


@pytest.fixture(scope="session")
def family(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`family(name)`: a tiny random checkpoint of that family, with the byte tokenizer."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            transformers.set_seed(5)
            folder = tmp_path_factory.mktemp(name)
            transformers.AutoModelForCausalLM.from_config(FAMILIES[name]()).save_pretrained(folder)
            for file in ("tokenizer.json", "tokenizer_config.json"):
                (folder / file).write_bytes((tiny_checkpoint / file).read_bytes())
            made[name] = folder
        return made[name]

    return make


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("isa", available_isas())
def test_every_family_on_every_instruction_set(
    family: Callable[[str], Path], name: str, isa: str, dtype: str
) -> None:
    path = family(name)
    expected = plain_answers(path, dtype, isa)
    assert len({answer[0] for choices in expected for answer in choices}) >= 8  # they are not all alike
    for way, run in WAYS.items():
        assert_equal(run(path, dtype, isa), expected, f"{name}, {dtype}, {isa}, {way}")


@pytest.mark.assets
@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_real_model(assets: Callable[[str], Path], dtype: str) -> None:
    path = assets("smollm2-135m-instruct-q4_1.gguf")
    expected = plain_answers(path, dtype, "auto")
    for way in ("in one batch", "from a warm cache", "in chunks of 33"):
        assert_equal(WAYS[way](path, dtype, "auto"), expected, f"SmolLM2, {dtype}, {way}")


# Three ways to break the law, each a rule of docs/decisions/0005 that somebody might forget.


def another_order_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of its own for decoding, as fast libraries have."""
    multiply = gemm.multiply

    def broken(
        engine: Engine, x: torch.Tensor, weight: Any, bias: Any, out_dtype: torch.dtype
    ) -> torch.Tensor:
        if len(x) > 1:
            return multiply(engine, x, weight, bias, out_dtype)
        half = weight.k // 2
        w = gemm.read_rows(engine, weight, torch.arange(weight.n)).float()
        y = x[:, :half].float() @ w[:, :half].T + x[:, half:].float() @ w[:, half:].T
        return (y if bias is None else y + bias).to(out_dtype)

    monkeypatch.setattr(gemm, "multiply", broken)


def another_instruction_set_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = gemm.multiply

    def broken(engine: Engine, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        isa = engine.isa if len(x) < 4 else Isa.AVX512
        return multiply(Engine(engine.library, 1, isa), x, *rest)

    monkeypatch.setattr(gemm, "multiply", broken)


def another_sum_in_the_norm_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rms_norm = rows.rms_norm

    def broken(engine: Engine, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        if len(x) < 16:
            return rms_norm(engine, x, gain, eps)
        wide = x.double()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gain).to(x.dtype)

    monkeypatch.setattr(rows, "rms_norm", broken)


@pytest.mark.parametrize(
    "break_the_law",
    [
        another_order_for_one_row,
        another_instruction_set_for_many_rows,
        another_sum_in_the_norm_of_many_rows,
    ],
)
def test_a_broken_rule_turns_this_red(
    family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, break_the_law: Callable[[Any], None]
) -> None:
    if "amx" not in available_isas():
        pytest.skip("the rule about mixing instruction sets needs two that differ")
    path = family("llama")
    dtype = "float32" if break_the_law is another_sum_in_the_norm_of_many_rows else "bfloat16"
    break_the_law(monkeypatch)
    # Eagerly: the rules are broken in Python, where the tape does not pass.
    expected = plain_answers(path, dtype, "amx", tape=False)
    assert with_every_kernel_called_from_python(path, dtype, "amx") != expected


def assert_equal(found: Answers, expected: Answers, what: str) -> None:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for choice, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            where = f"{what}: request {number}, choice {choice}"
            assert one[0] == other[0], f"{where}: tokens differ"
            assert one[2] == other[2], f"{where}: logprobs differ"
            assert one[1] == other[1], f"{where}: texts differ"
