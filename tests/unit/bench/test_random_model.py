"""Random checkpoints are complete checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from octavo import LLM, SamplingParams
from octavo.bench.random_model import SHAPES, is_random_model, write_random_model
from octavo.errors import ConfigError
from octavo.kernels.library import find_library


def test_random_models_generate_and_are_reproducible(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_random_model("random:tiny", tmp_path / name)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]
    with LLM(str(tmp_path / "a"), kv_memory="4MiB") as llm:
        output = llm.generate("hello", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))[0]
    assert len(output.choices[0].token_ids) == 4


def test_weights_have_their_spread_and_rows_are_unique(tmp_path: Path) -> None:
    write_random_model("random:tiny", tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
        embedding = file.get_tensor("model.embed_tokens.weight").float().numpy()
        gain = file.get_tensor("model.norm.weight").float().numpy()
    assert len(names) == 2 + 9 * SHAPES["tiny"]["num_hidden_layers"]
    assert 0.015 < embedding.std() < 0.025
    assert len(np.unique(embedding, axis=0)) == len(embedding)
    assert (gain == 1).all()
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("format", ["Q8_0", "MXFP4"])
def test_quantised_random_models_generate(tmp_path: Path, format: str) -> None:
    write_random_model("random:tiny", tmp_path, format)
    with LLM(str(tmp_path), kv_memory="4MiB") as llm:
        output = llm.generate("hello", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))[0]
    assert len(output.choices[0].token_ids) == 4
    assert set(llm.facts.weight_bytes) == {format if find_library() else "bfloat16", "float32"}


def test_unsuitable_formats_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rows of 64 weights cannot be divided into Q4_K blocks of 256"):
        write_random_model("random:tiny", tmp_path, "Q4_K")
    with pytest.raises(ConfigError, match="GGUF has no format INT8_32: use one of Q4_K, Q5_K"):
        write_random_model("random:tiny", tmp_path, "INT8_32")


def test_names_of_random_models(tmp_path: Path) -> None:
    assert is_random_model("random:x")
    assert not is_random_model("x/random:y")
    assert not is_random_model(None)
    with pytest.raises(ConfigError, match="use one of random:smollm2-135m, random:llama"):
        write_random_model("random:x", tmp_path)
