"""Present a GGUF file as the Hugging Face checkpoint that it was converted from.

Three things differ: the metadata has other keys, the tensors have other names, and the converter changed some
values. For `llama` it interleaved the two halves of every query and key head (its rope rotates neighbouring
rows); for Gemma it added the 1 of (1 + weight) to every norm. This module undoes both changes.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.gguf_file import GgufFile, GgufTensor, StringArray
from octavo.checkpoint.tensors import RowChunk, TensorInfo
from octavo.errors import CheckpointError
from octavo.weight_format import FORMATS

_COMMON_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PRE_NORM_NAMES = {"ffn_norm": "post_attention_layernorm"}
_SANDWICH_NORM_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_HEAD_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"
_ROPE_PAIRS_INTERLEAVED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")

_GEMMA3_WINDOW_PATTERN = 6
_GEMMA3_LOCAL_ROPE_BASE = 10_000.0
_GEMMA3_27B_LAYERS = 62


@dataclass(frozen=True)
class _Family:
    huggingface_class: str
    model_type: str
    layer_names: Mapping[str, str]
    rope_base: float  # the default of llama.cpp
    interleaved_heads: bool = False
    norms_plus_one: bool = False


_FAMILIES = {
    "llama": _Family(
        "LlamaForCausalLM", "llama", _COMMON_LAYER_NAMES | _PRE_NORM_NAMES, 10_000.0, interleaved_heads=True
    ),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2", _COMMON_LAYER_NAMES | _PRE_NORM_NAMES, 10_000.0),
    "qwen3": _Family(
        "Qwen3ForCausalLM", "qwen3", _COMMON_LAYER_NAMES | _PRE_NORM_NAMES | _HEAD_NORM_NAMES, 10_000.0
    ),
    "gemma3": _Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _COMMON_LAYER_NAMES | _SANDWICH_NORM_NAMES | _HEAD_NORM_NAMES,
        1_000_000.0,
        norms_plus_one=True,
    ),
}


@dataclass(frozen=True)
class _Mapped:
    tensor: GgufTensor
    head_rows: int = 0  # rows per head if the rows of each head are interleaved, else 0
    plus_one: bool = False


@dataclass(frozen=True)
class GgufStore:
    """The tensors of a GGUF under their Hugging Face names, with the converter's changes undone."""

    file: GgufFile
    mapped: Mapping[str, _Mapped]

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return {
            name: TensorInfo(name, entry.tensor.shape, entry.tensor.kind.name, entry.tensor.nbytes)
            for name, entry in self.mapped.items()
        }

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file.path,)

    def chunks(self, name: str) -> Iterator[RowChunk]:
        entry = self.mapped[name]
        for chunk in self.file.read_rows(entry.tensor, group=entry.head_rows or 1):
            if entry.head_rows:
                yield replace(chunk, values=_split_halves(chunk.values, entry.head_rows))
            elif entry.plus_one:
                yield RowChunk(chunk.start, _as_float32(chunk) - np.float32(1), "F32", chunk.source_nbytes)
            else:
                yield chunk

    def blocks(self, name: str) -> Iterator[RowChunk]:
        entry = self.mapped[name]
        if entry.tensor.kind.name not in FORMATS or len(entry.tensor.shape) != 2 or entry.plus_one:
            raise ValueError(f"{name} is not stored in weight blocks")
        for chunk in self.file.read_blocks(entry.tensor, group=entry.head_rows or 1):
            if entry.head_rows:  # only whole rows move, so their format does not matter
                yield replace(chunk, values=_split_halves(chunk.values, entry.head_rows))
            else:
                yield chunk


def _split_halves(rows: npt.NDArray[Any], head_rows: int) -> npt.NDArray[Any]:
    """Reorder the rows a0 b0 a1 b1 ... of each head to a0 a1 ... b0 b1 .... `rows` contains whole heads."""
    heads = rows.reshape(-1, head_rows // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def _as_float32(chunk: RowChunk) -> npt.NDArray[np.float32]:
    if chunk.dtype == "BF16":
        return (chunk.values.astype(np.uint32) << 16).view(np.float32)
    return chunk.values.astype(np.float32)


def present_as_huggingface(file: GgufFile) -> tuple[dict[str, Any], GgufStore]:
    """Return the equivalent of the model's config.json, and its tensors."""
    architecture = file.entries.get("general.architecture")
    family = _FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None or not isinstance(architecture, str):
        raise CheckpointError(
            f"{file.path.name} has the architecture {architecture!r}; supported are {', '.join(_FAMILIES)}."
        )
    fields = _GgufFields(file, architecture)
    if fields.integer("split.count", prefixed=False, default=1) > 1:
        raise CheckpointError(
            f"{file.path.name} is one part of a split GGUF. Merge the parts first: "
            "llama-gguf-split --merge FIRST_PART OUTPUT."
        )
    if fields.integer("expert_count", default=0) > 0:
        raise CheckpointError(f"{file.path.name} is a mixture of experts, which is not supported.")
    config = _config(file, family, fields)
    return config, GgufStore(file, _map_tensors(file, family, config))


def _map_tensors(file: GgufFile, family: _Family, config: Mapping[str, Any]) -> dict[str, _Mapped]:
    """Map Hugging Face names to tensors. A tensor that is not known keeps its GGUF name: loading the model
    then reports it as unexpected."""
    mapped: dict[str, _Mapped] = {}
    for name, tensor in file.tensors.items():
        if name == _ROPE_FACTORS:
            continue
        head_rows = 0
        if family.interleaved_heads and (match := _ROPE_PAIRS_INTERLEAVED.fullmatch(name)):
            head_rows = config["head_dim"]
            heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
            if tensor.shape[0] != heads * head_rows:
                raise CheckpointError(
                    f"{file.path.name}: {name} has {tensor.shape[0]} rows, not {heads} heads of {head_rows}."
                )
        plus_one = family.norms_plus_one and name.endswith("norm.weight")
        mapped[_huggingface_name(name, family)] = _Mapped(tensor, head_rows, plus_one)
    return mapped


def _huggingface_name(name: str, family: _Family) -> str:
    if match := _LAYER_TENSOR.fullmatch(name):
        layer, part, suffix = match.groups()
        if part in family.layer_names:
            return f"model.layers.{layer}.{family.layer_names[part]}.{suffix}"
    return _OUTER_NAMES.get(name, name)


class _GgufFields:
    """Typed access to `<architecture>.<key>`. A value of the wrong type is an error, not a default."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def raw(self, key: str, *, prefixed: bool = True) -> Any:
        return self._file.entries.get(f"{self._architecture}.{key}" if prefixed else key)

    def integer(self, key: str, *, default: int | None = None, prefixed: bool = True) -> int:
        value = self.raw(key, prefixed=prefixed)
        if isinstance(value, list) and value and all(element == value[0] for element in value):
            value = value[0]  # one value per layer, all equal
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise self.unusable(key, value, "a whole number (the same in every layer)")
        return value

    def size(self, key: str, *, default: int | None = None) -> int:
        value = self.integer(key, default=default)
        if value == 0:
            raise self.unusable(key, value, "a number greater than 0")
        return value

    def positive(self, key: str, *, default: float | None = None) -> float:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not 1e-30 < value < 1e30:
            raise self.unusable(key, value, "a number between 1e-30 and 1e30")
        return float(value)

    def unusable(self, key: str, value: Any, expected: str) -> CheckpointError:
        shown = repr(value)[:80]
        return CheckpointError(
            f"{self._file.path.name}: metadata {self._architecture}.{key} is {shown}; expected {expected}."
        )


def _config(file: GgufFile, family: _Family, fields: _GgufFields) -> dict[str, Any]:
    hidden_size, num_heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", default=hidden_size // num_heads or 1)
    config: dict[str, Any] = {
        "architectures": [family.huggingface_class],
        "model_type": family.model_type,
        "vocab_size": _vocabulary_size(file),
        "hidden_size": hidden_size,
        "intermediate_size": fields.size("feed_forward_length"),
        "num_hidden_layers": fields.size("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.size("attention.head_count_kv", default=num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.size("context_length"),
        "rms_norm_eps": fields.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.positive("rope.freq_base", default=family.rope_base),
        "rope_scaling": _rope_scaling(file, fields, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "dtype": _dtype(file),
    }
    if config["num_hidden_layers"] > len(file.tensors):
        raise fields.unusable("block_count", config["num_hidden_layers"], "at most the number of tensors")
    if fields.size("attention.value_length", default=head_dim) != head_dim:
        raise fields.unusable("attention.value_length", fields.raw("attention.value_length"), f"{head_dim}")
    if fields.size("rope.dimension_count", default=head_dim) != head_dim or head_dim % 2:
        raise fields.unusable("rope.dimension_count", fields.raw("rope.dimension_count"), f"{head_dim}, even")
    if family.model_type == "gemma3_text":
        config |= _gemma3_config(fields, config)
    elif family.model_type == "llama" and fields.raw("attention.sliding_window") is not None:
        # Of the models with the architecture "llama", only Mistral has a sliding window.
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": fields.size("attention.sliding_window"),
        }
    return config | _token_ids(file, config["vocab_size"])


def _dtype(file: GgufFile) -> str:
    """Return the dtype to compute in: float32 if all matrices are F32 or F64, else bfloat16.

    A GGUF file does not specify one.
    """
    kinds = {tensor.kind.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return "float32" if kinds <= {"F32", "F64"} else "bfloat16"


def _vocabulary_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.path.name} has no tensor token_embd.weight: the model is incomplete.")
    tokens = file.entries.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and tokens.count > embedding.shape[0]:
        raise CheckpointError(
            f"{file.path.name} lists {tokens.count} tokens but has embeddings for only {embedding.shape[0]}."
        )
    return embedding.shape[0]


def _rope_scaling(file: GgufFile, fields: _GgufFields, head_dim: int) -> dict[str, Any] | None:
    """Return the rope scaling that llama.cpp applies.

    A factor without a type is linear. If the file has both rope factors and a linear factor, llama.cpp
    divides by both.
    """
    factor = fields.positive("rope.scaling.factor", default=fields.positive("rope.scale_linear", default=1.0))
    kind = fields.raw("rope.scaling.type") or "linear"
    if kind == "none":
        factor = 1.0
    elif kind != "linear":
        original = fields.raw("rope.scaling.original_context_length")
        return {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    tensor = file.tensors.get(_ROPE_FACTORS)
    if tensor is None:
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if tensor.shape != (head_dim // 2,):
        raise CheckpointError(
            f"{file.path.name}: {_ROPE_FACTORS} has shape {tensor.shape} instead of ({head_dim // 2},)."
        )
    divisors = [float(x) * factor for chunk in file.read_rows(tensor) for x in _as_float32(chunk)]
    if not all(0 < divisor < math.inf for divisor in divisors):
        raise CheckpointError(
            f"{file.path.name}: {_ROPE_FACTORS} contains a factor that is not positive and finite."
        )
    return {"rope_type": "factors", "factors": divisors}


def _gemma3_config(fields: _GgufFields, config: Mapping[str, Any]) -> dict[str, Any]:
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    window = fields.integer("attention.sliding_window", default=0)
    pattern = fields.raw("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == num_layers:
        slides = [bool(layer) for layer in pattern]
    else:
        period = fields.size("attention.sliding_window_pattern", default=_GEMMA3_WINDOW_PATTERN)
        slides = [(layer + 1) % period != 0 for layer in range(num_layers)]
    # Gemma 3 27B scales queries by the hidden size per head; the other sizes scale them by the head size.
    scalar: float = head_dim
    if num_layers == _GEMMA3_27B_LAYERS:
        scalar = config["hidden_size"] / config["num_attention_heads"]
    if fields.raw("attention.scale") is not None:
        scale = fields.positive("attention.scale")
        scalar = 1 / (scale * scale)
    softcap = fields.raw("final_logit_softcapping")
    return {
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if window and slide else "full_attention" for slide in slides],
        "rope_local_base_freq": fields.positive("rope.freq_base_swa", default=_GEMMA3_LOCAL_ROPE_BASE),
        "query_pre_attn_scalar": scalar,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None if softcap is None else fields.positive("final_logit_softcapping"),
    }


def _token_ids(file: GgufFile, vocab_size: int) -> dict[str, Any]:
    """Return the special token ids. `eos_token_id` lists all ids that end a turn: those of end of text (eos),
    end of turn (eot) and end of a message to a tool (eom)."""

    def token_id(name: str) -> int | None:
        value = file.entries.get(f"tokenizer.ggml.{name}_token_id")
        return value if type(value) is int and 0 <= value < vocab_size else None

    ends = dict.fromkeys(end for name in ("eos", "eot", "eom") if (end := token_id(name)) is not None)
    return {"bos_token_id": token_id("bos"), "pad_token_id": token_id("padding"), "eos_token_id": list(ends)}
