"""GGUF files read as Hugging Face checkpoints: config, names, and reversal of the converter's changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind

from data.json_types import JsonObject
from octavo.checkpoint import open_checkpoint
from octavo.checkpoint import tensors as tensors_module
from octavo.checkpoint.gguf_file import read_gguf
from octavo.checkpoint.gguf_names import GgufStore, _as_float32, present_as_huggingface
from octavo.config import EngineOptions
from octavo.errors import CheckpointError
from unit.checkpoint.tiny_gguf import GgufOptions, WriteGguf


def whole(store: GgufStore, name: str) -> np.ndarray:
    return np.concatenate([_as_float32(chunk) for chunk in store.chunks(name)])


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Permute q and k as the converter does: row i of a head moves to 2i, row half + i to 2i + 1."""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for row in range(size):
            half, index = divmod(row, size // 2)
            out[head * size + 2 * index + half] = rows[head * size + row]
    return out


@pytest.mark.parametrize("chunk_elements", [1, 700, 1 << 20])
def test_llama_head_order_is_restored_for_any_chunk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tiny_gguf: WriteGguf, chunk_elements: int
) -> None:
    monkeypatch.setattr(tensors_module, "CHUNK_ELEMENTS", chunk_elements)
    stored = write_tiny_gguf(tmp_path / "a.gguf")
    config, store = present_as_huggingface(read_gguf(tmp_path / "a.gguf"))
    assert config["head_dim"] == 16
    for part, heads in (("q", 4), ("k", 2)):
        ours = whole(store, f"model.layers.1.self_attn.{part}_proj.weight")
        np.testing.assert_array_equal(interleave(ours, heads), stored[f"blk.1.attn_{part}.weight"])
    for theirs, name in (("attn_v", "self_attn.v_proj"), ("ffn_norm", "post_attention_layernorm")):
        np.testing.assert_array_equal(
            whole(store, f"model.layers.1.{name}.weight"), stored[f"blk.1.{theirs}.weight"]
        )


def test_qwen_heads_are_unchanged(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    biases = {f"blk.{layer}.attn_q.bias": np.arange(64, dtype=np.float32) for layer in range(2)}
    stored = write_tiny_gguf(tmp_path / "a.gguf", "qwen2", tensors=biases)
    config, store = present_as_huggingface(read_gguf(tmp_path / "a.gguf"))
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["attention_bias"]
    for suffix in ("weight", "bias"):
        np.testing.assert_array_equal(
            whole(store, f"model.layers.0.self_attn.q_proj.{suffix}"), stored[f"blk.0.attn_q.{suffix}"]
        )


def test_only_gemma_norms_have_one_subtracted(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    stored = write_tiny_gguf(
        tmp_path / "a.gguf",
        "gemma3",
        metadata={"gemma3.attention.key_length": 16, "gemma3.attention.value_length": 16},
    )
    _, store = present_as_huggingface(read_gguf(tmp_path / "a.gguf"))
    norms = {
        "model.norm": "output_norm",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.post_attention_norm",
        "model.layers.0.pre_feedforward_layernorm": "blk.0.ffn_norm",
        "model.layers.0.post_feedforward_layernorm": "blk.0.post_ffw_norm",
        "model.layers.0.self_attn.q_norm": "blk.0.attn_q_norm",
        "model.layers.0.self_attn.k_norm": "blk.0.attn_k_norm",
    }
    for ours, theirs in norms.items():
        np.testing.assert_array_equal(whole(store, f"{ours}.weight"), stored[f"{theirs}.weight"] - 1)
    plain = {"model.embed_tokens": "token_embd", "model.layers.0.self_attn.q_proj": "blk.0.attn_q"}
    for ours, theirs in plain.items():
        np.testing.assert_array_equal(whole(store, f"{ours}.weight"), stored[f"{theirs}.weight"])


def config_of(
    tmp_path: Path, write: WriteGguf, architecture: str = "llama", **options: Unpack[GgufOptions]
) -> JsonObject:
    write(tmp_path / "a.gguf", architecture, **options)
    return present_as_huggingface(read_gguf(tmp_path / "a.gguf"))[0]


def test_the_config_has_the_shape_of_config_json(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    config = config_of(
        tmp_path,
        write_tiny_gguf,
        metadata={
            "llama.rope.freq_base": 500_000.0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.eot_token_id": 3,
            "tokenizer.ggml.eom_token_id": 2,
            "tokenizer.ggml.padding_token_id": 4_000_000_000,
        },
    )
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 40,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 500_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "bfloat16",
        "bos_token_id": 1,
        "pad_token_id": None,
        "eos_token_id": [2, 3],
    }


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (Kind.F32, "float32"),
        (Kind.F16, "bfloat16"),
        (Kind.BF16, "bfloat16"),
        (Kind.Q8_0, "bfloat16"),
        (Kind.Q4_1, "bfloat16"),
    ],
)
def test_compute_dtype(tmp_path: Path, write_tiny_gguf: WriteGguf, kind: Kind, dtype: str) -> None:
    """The dtype does not depend on the processor. Vectors are F32 in every file and are ignored."""
    config = config_of(tmp_path, write_tiny_gguf, kind=kind)
    assert EngineOptions().dtype_for(config) == dtype
    assert EngineOptions(dtype="float16").dtype_for(config) == "float16"


def test_an_output_matrix_means_untied_embeddings(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    output = np.ones((40, 64), dtype=np.float32)
    config = config_of(tmp_path, write_tiny_gguf, tensors={"output.weight": output})
    assert not config["tie_word_embeddings"]


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling(
    tmp_path: Path, write_tiny_gguf: WriteGguf, metadata: JsonObject, scaling: JsonObject | None
) -> None:
    assert config_of(tmp_path, write_tiny_gguf, metadata=metadata)["rope_scaling"] == scaling


def test_rope_factors_are_part_of_the_config(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    factors = np.array([1, 1, 1, 2, 4, 8, 8, 8], dtype=np.float32)
    write_tiny_gguf(
        tmp_path / "a.gguf",
        tensors={"rope_freqs.weight": factors},
        metadata={"llama.rope.scaling.factor": 2.0},
    )
    config, store = present_as_huggingface(read_gguf(tmp_path / "a.gguf"))
    assert config["rope_scaling"] == {"rope_type": "factors", "factors": [2, 2, 2, 4, 8, 16, 16, 16]}
    assert "rope_freqs.weight" not in store.tensors


def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    config = config_of(tmp_path, write_tiny_gguf, metadata={"llama.attention.sliding_window": 32})
    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 32)


def test_gemma_layers_windows_and_ropes(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    given: JsonObject = {"gemma3.attention.sliding_window": 8, "gemma3.attention.key_length": 16}
    config = config_of(tmp_path, write_tiny_gguf, "gemma3", layers=7, metadata=given)
    sliding = "sliding_attention"
    assert config["layer_types"] == [sliding] * 5 + ["full_attention", sliding]
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1_000_000.0, 10_000.0)
    assert (config["sliding_window"], config["query_pre_attn_scalar"]) == (8, 16)
    given |= {"gemma3.rope.freq_base_swa": 5_000.0, "gemma3.attention.sliding_window_pattern": [True, False]}
    config = config_of(tmp_path, write_tiny_gguf, "gemma3", layers=2, metadata=given)
    assert config["layer_types"] == [sliding, "full_attention"]
    assert config["rope_local_base_freq"] == 5_000.0


def test_the_27b_gemma_scales_its_queries_by_width(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    given = {"gemma3.attention.key_length": 32, "gemma3.attention.value_length": 32}
    config = config_of(tmp_path, write_tiny_gguf, "gemma3", layers=62, metadata=given)
    assert config["query_pre_attn_scalar"] == 64 / 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"architecture": "mamba"}, "'mamba'; supported are llama, qwen2, qwen3, gemma3"),
        ({"metadata": {"llama.expert_count": 8}}, "mixture of experts"),
        ({"metadata": {"split.count": 3}}, "--merge"),
        ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "head_count_kv"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "dimension_count"),
        ({"metadata": {"llama.attention.head_count_kv": 4}}, "not 4 heads of 16"),
        ({"metadata": {"llama.block_count": 2_000_000_000}}, "block_count"),
        ({"metadata": {"llama.rope.freq_base": 0.0}}, "freq_base"),
        ({"metadata": {"tokenizer.ggml.tokens": ["a"] * 41}}, "41 tokens"),
        ({"without": ("llama.context_length",)}, "context_length"),
        ({"tensors": {"rope_freqs.weight": np.ones(7, np.float32)}}, "rope_freqs"),
    ],
)
def test_unsupported_models_are_rejected(
    tmp_path: Path, write_tiny_gguf: WriteGguf, options: JsonObject, complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        config_of(tmp_path, write_tiny_gguf, **options)


def test_an_unknown_tensor_keeps_its_name(tmp_path: Path, write_tiny_gguf: WriteGguf) -> None:
    write_tiny_gguf(tmp_path / "a.gguf", tensors={"blk.0.surprise.weight": np.ones(4, np.float32)})
    _, store = present_as_huggingface(read_gguf(tmp_path / "a.gguf"))
    assert "blk.0.surprise.weight" in store.tensors


@pytest.mark.assets
def test_a_real_llama_is_read_as_by_transformers(assets: Callable[[str], Path]) -> None:
    """from_pretrained(gguf_file=...) uses `load_gguf_checkpoint`, which does not need accelerate."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = assets("smollm2-135m-instruct-q4_1.gguf")
    checkpoint = open_checkpoint(str(path))
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**checkpoint.config))
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "vocab_size", "head_dim"):
        assert checkpoint.config[key] == theirs["config"][key]
    assert set(checkpoint.tensors) == set(theirs["tensors"])
    for name, tensor in theirs["tensors"].items():
        ours = np.concatenate([_as_float32(chunk) for chunk in checkpoint.chunks(name)])
        assert torch.equal(torch.from_numpy(ours), tensor), name
