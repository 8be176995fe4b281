"""Rope frequencies match transformers, but no last bit depends on torch or the C library."""

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from data.json_types import JsonObject
from octavo.models.config import FactorScaling, ModelConfig, RopeConfig
from octavo.models.rope import inverse_frequencies

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=2e-7, atol=0)


def _read(config: LlamaConfig | Gemma3TextConfig, architecture: str) -> ModelConfig:
    return ModelConfig.from_huggingface({**config.to_dict(), "architectures": [architecture]})


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(
    "scaling", [{"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}, _LLAMA3]
)
def test_llama_frequencies_match_transformers(scaling: JsonObject, head_dim: int) -> None:
    theta = 500_000.0
    config = LlamaConfig(
        num_hidden_layers=1, head_dim=head_dim, rope_parameters={**scaling, "rope_theta": theta}
    )
    ours = inverse_frequencies(_read(config, "LlamaForCausalLM").layers[0].rope, head_dim)
    assert_close(ours, LlamaRotaryEmbedding(config).inv_freq)


def test_gemma_has_two_sets_of_frequencies() -> None:
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    config = Gemma3TextConfig(num_hidden_layers=6, rope_parameters=parameters)
    sliding, full = (_read(config, "Gemma3ForCausalLM").layers[index].rope for index in (0, 5))
    theirs = Gemma3RotaryEmbedding(config)
    assert_close(
        inverse_frequencies(sliding, config.head_dim), theirs.get_buffer("sliding_attention_inv_freq")
    )
    assert_close(inverse_frequencies(full, config.head_dim), theirs.get_buffer("full_attention_inv_freq"))


def test_factors_divide_each_frequency() -> None:
    plain = inverse_frequencies(RopeConfig(10_000.0), 8)
    scaled = inverse_frequencies(RopeConfig(10_000.0, FactorScaling((1.0, 2.0, 4.0, 8.0))), 8)
    assert torch.equal(plain / torch.tensor([1.0, 2.0, 4.0, 8.0]), scaled)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1_000_000.0, 123_456.7])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_powers_are_rounded_once(theta: float, head_dim: int) -> None:
    """Position 128k amplifies a last bit, so each is the float nearest to the exact power, then inverted."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    powers = torch.tensor([theta**exponent for exponent in exponents.tolist()], dtype=torch.float64).float()
    assert torch.equal(inverse_frequencies(RopeConfig(theta), head_dim), 1.0 / powers)
