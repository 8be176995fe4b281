"""Checkpoints with the shapes of well-known models and random weights, to measure speed without a download.

Example: `random:llama-3.2-1b`. The first 256 tokens are bytes; higher ids have no text.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.bench.random_gguf import write_random_gguf
from octavo.errors import ConfigError

PREFIX = "random:"
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rope_theta": 100_000.0,
    },
    "llama-3.2-1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500_000.0,
    },
    "tiny": {  # for tests: complete and fast
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_theta": 10_000.0,
    },
}
SPREAD = 0.02  # standard deviation of the weights, as transformers initialises them
# Weights repeat after this many: drawing a billion takes a minute. A prime, so that no two rows are equal.
NUM_DISTINCT = 1_048_583


def is_random_model(name: str | None) -> bool:
    return name is not None and name.startswith(PREFIX)


def write_random_model(name: str, folder: Path, format: str | None = None) -> None:
    """Write config.json, model.safetensors and tokenizer.json of `random:SHAPE` in bfloat16.

    With a `format`, write a GGUF file with all matrices in that format instead.
    """
    shape = SHAPES.get(name.removeprefix(PREFIX))
    if shape is None:
        raise ConfigError(f"unknown model {name}: use one of {', '.join(PREFIX + known for known in SHAPES)}")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        **shape,
    }
    folder.mkdir(parents=True, exist_ok=True)
    if format is not None:
        write_random_gguf(folder / "model.gguf", config, lambda _: format)
        return
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_safetensors(folder / "model.safetensors", dict(_tensors(config)))
    _write_tokenizer(folder)


def _tensors(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield tensor names and shapes of a Llama model, as transformers saves it."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    kv_width = hidden // heads * kv_heads
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (hidden, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)


def _write_safetensors(path: Path, tensors: Mapping[str, tuple[int, ...]]) -> None:
    """Write the length of the header, the header, and the values of each tensor."""
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in tensors.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    drawn = _as_bfloat16(np.random.default_rng(0).normal(0.0, SPREAD, NUM_DISTINCT))
    num_written = 0
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for shape in tensors.values():
            size = int(np.prod(shape))
            if len(shape) == 1:  # gain of a norm
                file.write(_as_bfloat16(np.ones(size)).tobytes())
                continue
            for piece in _cycled(drawn, num_written, size):
                file.write(piece.tobytes())
            num_written += size


def _cycled(values: npt.NDArray[np.uint16], start: int, size: int) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield `size` values from `start` on, wrapping around at the end."""
    position, end = start % len(values), start % len(values) + size
    while position < end:
        offset = position % len(values)
        piece = values[offset : offset + end - position]
        yield piece
        position += len(piece)


def _as_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Return the upper halves of float32 values."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
