"""GGUF files of Llama models with random weights, in any quantised format of GGUF."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octavo.bench.random_blocks import random_blocks
from octavo.errors import ConfigError
from octavo.weight_format import FORMATS


def write_random_gguf(path: Path, config: Mapping[str, Any], format_of: Callable[[str], str]) -> None:
    """Write a model. `config` is a Llama's, in Hugging Face's form; `format_of` maps GGUF names to formats.

    The vocabulary has all bytes, an end token and one pair of letters, because GGUF vocabularies need a
    merge.
    """
    from gguf import GGUFWriter
    from gguf.constants import GGMLQuantizationType

    shapes = dict(_shapes(config))
    formats = {name: format_of(name) for name, shape in shapes.items() if len(shape) == 2}
    for name, format in formats.items():
        if format not in FORMATS or format not in GGMLQuantizationType.__members__:
            known = ", ".join(form for form in FORMATS if form in GGMLQuantizationType.__members__)
            raise ConfigError(f"GGUF has no format {format}: use one of {known}")
        if shapes[name][1] % FORMATS[format].block_k:
            raise ConfigError(
                f"rows of {shapes[name][1]} weights cannot be divided into {format} blocks of"
                f" {FORMATS[format].block_k}: use another shape or another format"
            )
    writer = GGUFWriter(path, "llama")
    _add_metadata(writer, config)
    for name, shape in shapes.items():
        if name in formats:
            size = (shape[0], FORMATS[formats[name]].row_bytes(shape[1]))
            kind = GGMLQuantizationType[formats[name]]
            writer.add_tensor_info(name, size, np.dtype(np.uint8), size[0] * size[1], kind)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        if name in formats:
            writer.write_tensor_data(random_blocks(formats[name], shape[0], shape[1], random))
        else:
            writer.write_tensor_data(np.ones(shape, np.float32))
    writer.close()


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv_width = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "token_embd.weight", (config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        yield f"blk.{index}.attn_norm.weight", (hidden,)
        yield f"blk.{index}.attn_q.weight", (hidden, hidden)
        yield f"blk.{index}.attn_k.weight", (kv_width, hidden)
        yield f"blk.{index}.attn_v.weight", (kv_width, hidden)
        yield f"blk.{index}.attn_output.weight", (hidden, hidden)
        yield f"blk.{index}.ffn_norm.weight", (hidden,)
        yield f"blk.{index}.ffn_gate.weight", (inner, hidden)
        yield f"blk.{index}.ffn_up.weight", (inner, hidden)
        yield f"blk.{index}.ffn_down.weight", (hidden, inner)
    yield "output_norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", True):
        yield "output.weight", (config["vocab_size"], hidden)


def _add_metadata(writer: Any, config: Mapping[str, Any]) -> None:
    from gguf.constants import TokenType
    from tokenizers import pre_tokenizers

    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>", "th"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token == "<|end|>" else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(tokens.index("<|end|>"))
