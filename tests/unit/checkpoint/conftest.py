"""Small GGUF models, written by the `gguf` package."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind

from data.json_types import Json, JsonObject
from octavo.bench.random_blocks import random_blocks
from unit.checkpoint.tiny_gguf import WriteGguf

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, VOCAB = 64, 4, 2, 96, 40
BLOCK: dict[str, tuple[int, ...]] = {
    "attn_norm.weight": (HIDDEN,),
    "ffn_norm.weight": (HIDDEN,),
    "attn_q.weight": (HIDDEN, HIDDEN),
    "attn_k.weight": (HIDDEN // 2, HIDDEN),
    "attn_v.weight": (HIDDEN // 2, HIDDEN),
    "attn_output.weight": (HIDDEN, HIDDEN),
    "ffn_gate.weight": (FEED_FORWARD, HIDDEN),
    "ffn_up.weight": (FEED_FORWARD, HIDDEN),
    "ffn_down.weight": (HIDDEN, FEED_FORWARD),
}
GEMMA_BLOCK = BLOCK | {
    "post_attention_norm.weight": (HIDDEN,),
    "post_ffw_norm.weight": (HIDDEN,),
    "attn_q_norm.weight": (16,),
    "attn_k_norm.weight": (16,),
}


def _add_metadata(writer: gguf.GGUFWriter, metadata: Mapping[str, Json]) -> None:
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)


def _quantised(value: np.ndarray, kind: Kind) -> np.ndarray:
    try:
        return gguf.quants.quantize(value, kind)
    except NotImplementedError:  # gguf can read this kind but not write it
        return random_blocks(kind.name, value.shape[0], value.shape[1], np.random.default_rng(len(value)))


@pytest.fixture(scope="session")
def write_tiny_gguf() -> WriteGguf:
    """Write a model of two layers and return its tensors as stored in the file, dequantised."""

    def write(
        path: Path,
        architecture: str = "llama",
        *,
        layers: int = 2,
        metadata: Mapping[str, Json] | None = None,
        without: tuple[str, ...] = (),
        tensors: Mapping[str, np.ndarray] | None = None,
        kind: Kind = Kind.Q8_0,
        kinds: Mapping[str, Kind] | None = None,
        hidden: int = HIDDEN,
    ) -> dict[str, np.ndarray]:
        writer = gguf.GGUFWriter(path, architecture)
        known: JsonObject = {
            "context_length": 256,
            "embedding_length": hidden,
            "feed_forward_length": FEED_FORWARD,
            "block_count": layers,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5,
        }
        entries = {f"{architecture}.{key}": value for key, value in known.items()}
        entries["tokenizer.ggml.tokens"] = [f"t{index}é" for index in range(VOCAB)]
        entries |= metadata or {}
        _add_metadata(writer, {key: value for key, value in entries.items() if key not in without})
        block = GEMMA_BLOCK if architecture == "gemma3" else BLOCK
        shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
        shapes |= {f"blk.{layer}.{name}": shape for layer in range(layers) for name, shape in block.items()}
        scale = hidden // HIDDEN
        shapes = {
            name: tuple(n * scale if n in (HIDDEN, HIDDEN // 2) else n for n in shape)
            for name, shape in shapes.items()
        }
        random = np.random.default_rng(0)
        values = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
        values |= tensors or {}
        stored: dict[str, np.ndarray] = {}
        for name, value in values.items():
            if value.ndim == 1:
                writer.add_tensor(name, value)
                stored[name] = value
            else:
                its_kind = (kinds or {}).get(name, kind)
                raw = _quantised(value, its_kind)
                writer.add_tensor(name, raw, raw_dtype=its_kind)
                stored[name] = gguf.quants.dequantize(raw, its_kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return stored

    return write
