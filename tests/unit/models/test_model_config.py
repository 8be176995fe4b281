"""config.json files as on the hub, read in both styles."""

import json
import subprocess
import sys

import pytest
import transformers

from data.json_types import JsonObject
from octavo.errors import CheckpointError
from octavo.models.config import (
    FactorScaling,
    LayerConfig,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
)

_LLAMA_3_2_1B: JsonObject = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
_SMOLLM2_135M: JsonObject = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
_QWEN2_5_0_5B: JsonObject = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_QWEN3_0_6B: JsonObject = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_GEMMA_3_270M: JsonObject = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "_sliding_window_pattern": 6,
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "intermediate_size": 2048,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "use_bidirectional_attention": False,
    "vocab_size": 262144,
}
_MISTRAL_7B: JsonObject = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
# From before `layer_types` existed; only the global layers are scaled for long contexts.
_GEMMA_3_OLD = {
    **{key: value for key, value in _GEMMA_3_270M.items() if key not in ("layer_types", "rope_theta")},
    "sliding_window_pattern": 6,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
_LLAMA_LINEAR = {**_SMOLLM2_135M, "rope_scaling": {"type": "linear", "factor": 2.0}}
_QWEN2_SLIDING = {**_QWEN2_5_0_5B, "use_sliding_window": True, "max_window_layers": 20}
_MISTRAL_V0_3 = {**_MISTRAL_7B, "sliding_window": None, "rope_theta": 1000000.0}
_MISTRAL_SILENT = {key: value for key, value in _MISTRAL_7B.items() if key != "sliding_window"}

_ALL = {
    "Llama-3.2-1B": _LLAMA_3_2_1B,
    "SmolLM2-135M": _SMOLLM2_135M,
    "Qwen2.5-0.5B": _QWEN2_5_0_5B,
    "Qwen3-0.6B": _QWEN3_0_6B,
    "gemma-3-270m": _GEMMA_3_270M,
    "Mistral-7B-v0.1": _MISTRAL_7B,
    "gemma 3, old": _GEMMA_3_OLD,
    "llama, linear": _LLAMA_LINEAR,
    "qwen2, sliding": _QWEN2_SLIDING,
    "Mistral-7B-v0.3": _MISTRAL_V0_3,
    "mistral, silent": _MISTRAL_SILENT,
}


def _read(config: JsonObject) -> ModelConfig:
    return ModelConfig.from_huggingface(config)


def test_every_field_of_llama_3_2() -> None:
    rope = RopeConfig(500000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192))
    assert _read(_LLAMA_3_2_1B) == ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_positions=131072,
        norm_eps=1e-5,
        tie_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        attention_scale=64**-0.5,
        attention_softcap=None,
        logit_softcap=None,
        layers=(LayerConfig(None, rope),) * 16,
    )


def test_distinctive_fields_of_other_families() -> None:
    smollm2 = _read(_SMOLLM2_135M)
    assert (smollm2.head_dim, smollm2.num_kv_heads, smollm2.tie_embeddings) == (64, 3, True)
    assert smollm2.layers == (LayerConfig(None, RopeConfig(100000.0)),) * 30
    assert {layer.window for layer in _read(_QWEN2_5_0_5B).layers} == {None}
    assert _read(_QWEN3_0_6B).head_dim * _read(_QWEN3_0_6B).num_heads == 2048
    assert {layer.window for layer in _read(_MISTRAL_7B).layers} == {4096}
    assert {layer.window for layer in _read(_MISTRAL_V0_3).layers} == {None}
    assert [layer.window for layer in _read(_QWEN2_SLIDING).layers] == [None] * 20 + [32768] * 4

    local = LayerConfig(512, RopeConfig(10000.0))
    for config, scaling in ((_GEMMA_3_270M, None), (_GEMMA_3_OLD, LinearScaling(8.0))):
        gemma = _read(config)
        assert gemma.layers == (*[local] * 5, LayerConfig(None, RopeConfig(1000000.0, scaling))) * 3
        assert gemma.tie_embeddings
    assert _read({**_GEMMA_3_270M, "query_pre_attn_scalar": 100}).attention_scale == 0.1
    assert _read({**_GEMMA_3_270M, "final_logit_softcapping": 30.0}).logit_softcap == 30.0


@pytest.mark.parametrize("name", _ALL)
def test_a_config_written_by_transformers_5_reads_the_same(name: str) -> None:
    """transformers converts the old style to the new one: rope_parameters, layer_types, defaults."""
    old = _ALL[name]
    new = json.loads(transformers.AutoConfig.for_model(**old).to_json_string())
    assert "rope_parameters" in new
    assert "rope_scaling" not in new
    assert _read({**new, "architectures": old["architectures"]}) == _read(old)


def test_rope_factors_of_a_gguf_file() -> None:
    factors = [1.0] * 16 + [32.0] * 16
    config = _read({**_LLAMA_3_2_1B, "rope_scaling": {"rope_type": "factors", "factors": factors}})
    assert config.layers[0].rope.scaling == FactorScaling(tuple(factors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["BertModel"]},
            r"BertModel.*Gemma3ForCausalLM, LlamaForCausalLM, MistralForCausalLM",
        ),
        ({"architectures": None}, "architectures"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn.*default, linear, llama3 and factors"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' must be a number"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [1.0]}}, "1 rope factors"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_size": None}, "'hidden_size' must be a positive integer"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be a positive integer"),
        ({"num_key_value_heads": 5}, "5 key-value heads"),
        ({"hidden_act": "relu"}, "relu"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_unsupported_configs_are_rejected(change: JsonObject, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _read({**_LLAMA_3_2_1B, **change})


def test_an_embedding_gemma_is_rejected() -> None:
    with pytest.raises(CheckpointError, match="embedding model"):
        _read({**_GEMMA_3_270M, "use_bidirectional_attention": True})


def test_reading_a_config_needs_no_torch() -> None:
    """`octavo inspect` and the front end read configs without torch."""
    code = "import sys, octavo.models.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
