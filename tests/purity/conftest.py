"""Tiny random models of every family."""

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import pytest
import transformers

from octavo.runner import model_runner


class Sizes(TypedDict):
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    initializer_range: float
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None


SIZES: Sizes = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
}
FAMILIES: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
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
        final_logit_softcapping=20.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "every_family" in metafunc.fixturenames:
        metafunc.parametrize("every_family", FAMILIES)


@pytest.fixture(autouse=True)
def patient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sequence skips a step on a slow machine, since the tests rely on batch sizes."""
    monkeypatch.setattr(model_runner, "MIN_WAIT", 300.0)


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
