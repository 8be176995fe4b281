"""Golden vectors of the whole engine.

These are hashes of the tokens and logprobs that tiny checkpoints of every family generate, and hashes of
dequantised weights. The checkpoints are made with integer operations only.
"""

import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from data.json_types import JsonObject
from data.tiny_llama import write_byte_tokenizer
from octavo import LLM, SamplingParams
from octavo.checkpoint.gguf_file import GgufFile, GgufTensor
from octavo.protocol import TokenLogprob

DTYPES = ("bfloat16", "float32")
QUANTISATIONS = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
)
VOCAB, WIDTH, INNER, HEADS = 260, 64, 96, 4

COMMON: JsonObject = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "dtype": "bfloat16",
}
LLAMA3_ROPE: JsonObject = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
FAMILIES: Mapping[str, JsonObject] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_scaling": LLAMA3_ROPE},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 40,
        "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 128,
        "rope_theta": 1000000.0,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "head_dim": 48,
        "query_pre_attn_scalar": 48,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": 20.0,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}


def main() -> None:
    """Print the hashes, for `python -m golden.engine_vectors FOLDER DTYPE KERNELS` in its own process."""
    folder, dtype, kernels = sys.argv[1:]
    print(json.dumps(engine_hashes(Path(folder), dtype, kernels)))


def engine_hashes(folder: Path, dtype: str, kernels: str) -> dict[str, str]:
    """Return hashes by family and dtype. Checkpoints that are not in the folder yet are written there."""
    hashes = {}
    for family in FAMILIES:
        checkpoint = folder / family
        if not checkpoint.exists():
            write_checkpoint(checkpoint, family)
        with LLM(str(checkpoint), dtype=dtype, kernels=kernels, kv_memory="8MiB", threads=2) as llm:
            hashes[f"{family}/{dtype}"] = _hash_answers(llm)
    return hashes


def dequantised_hashes(folder: Path) -> dict[str, str]:
    """Return hashes by quantisation: of the floats that 64 weight blocks of random bytes stand for."""
    hashes = {}
    for number, name in enumerate(QUANTISATIONS):
        kind = GGMLQuantizationType[name]
        block, num_bytes = GGML_QUANT_SIZES[kind]
        raw = random_bits(850 + number, 8 * num_bytes).astype("<u8").tobytes()
        path = folder / f"{name}.blocks"
        path.write_bytes(raw)
        tensor = GgufTensor(name, (16, 4 * block), kind, 0, len(raw))
        digest = hashlib.sha256()
        for chunk in GgufFile(path, 3, {}, {name: tensor}).read_rows(tensor):
            values = chunk.values.astype("<f4")
            values[np.isnan(values)] = np.nan  # one bit pattern for every NaN
            digest.update(values.tobytes())
        hashes[f"dequantised/{name}"] = digest.hexdigest()[:16]
    return hashes


def _hash_answers(llm: LLM) -> str:
    """Return a hash of greedy and sampled answers that use every transform.

    The longest prompt has more than one attention split. No answer uses a grammar: llguidance computes which
    tokens it allows, and its version is a separate part of the fingerprint.
    """
    digest = hashlib.sha256()
    for number, length in enumerate((40, 1, 33, 530)):
        prompt = [int(bits) % 250 for bits in random_bits(800 + number, length)]
        params = SamplingParams(
            temperature=(0.0, 1.0, 0.7, 1.2)[number],
            top_p=(1.0, 0.95, 1.0, 0.9)[number],
            top_k=(0, 0, 50, 0)[number],
            min_p=(0.0, 0.0, 0.01, 0.0)[number],
            repetition_penalty=(1.0, 1.2, 1.0, 1.0)[number],
            frequency_penalty=(0.0, 0.0, 0.3, 0.0)[number],
            presence_penalty=(0.0, 0.0, 0.0, 0.4)[number],
            logit_bias={7: 2.5, 90: -1.25} if number == 1 else {},
            n=2 if number == 2 else 1,
            prompt_logprobs=1 if number == 0 else None,
            seed=number,
            max_tokens=16,
            ignore_eos=True,
            logprobs=3,
        )
        output = llm.generate([prompt], params)[0]
        _add_logprobs(digest, output.prompt_logprobs)
        for choice in output.choices:
            digest.update(struct.pack(f"<{len(choice.token_ids)}q", *choice.token_ids))
            _add_logprobs(digest, choice.logprobs)
    return digest.hexdigest()[:16]


def _add_logprobs(digest: "hashlib._Hash", logprobs: Sequence[TokenLogprob] | None) -> None:
    for entry in logprobs or ():
        digest.update(struct.pack("<qf", entry.token_id, entry.logprob))
        for token_id, logprob in entry.top:
            digest.update(struct.pack("<qf", token_id, logprob))


def random_bits(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return random bits from the same splitmix64 as in golden.h."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed << 32)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _bfloat16(seed: int, count: int, low: int, high: int) -> npt.NDArray[np.uint16]:
    """Return bit patterns with stored exponents from `low` to `high`; that of 1.0 is 127."""
    bits = random_bits(seed, count)
    exponents = np.uint64(low) + (bits >> np.uint64(32)) % np.uint64(high - low + 1)
    signs, mantissas = bits & np.uint64(0x8000), (bits >> np.uint64(16)) & np.uint64(0x7F)
    patterns: npt.NDArray[np.uint16] = (signs | (exponents << np.uint64(7)) | mantissas).astype("<u2")
    return patterns


def write_checkpoint(folder: Path, family: str) -> None:
    """Write a complete checkpoint folder with a byte tokenizer."""
    folder.mkdir()
    config = COMMON | FAMILIES[family]
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    header: JsonObject = {}
    data = bytearray()
    for number, (name, shape) in enumerate(_shapes(family, config)):
        is_norm = "norm" in name
        # Gemma adds 1 to the gain of a norm, so its stored gains are small.
        low, high = ((119, 122) if family == "gemma3" else (126, 127)) if is_norm else (122, 125)
        values = _bfloat16(1000 + number, int(np.prod(shape)), low, high).tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [len(data), len(data) + len(values)],
        }
        data += values
    encoded_header = json.dumps(header).encode()
    content = struct.pack("<Q", len(encoded_header)) + encoded_header + data
    (folder / "model.safetensors").write_bytes(content)


def _shapes(family: str, config: JsonObject) -> Iterator[tuple[str, tuple[int, ...]]]:
    head_dim = int(config.get("head_dim", WIDTH // HEADS))
    queries, keys = HEADS * head_dim, int(config["num_key_value_heads"]) * head_dim
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for layer in range(int(config["num_hidden_layers"])):
        prefix = f"model.layers.{layer}"
        for projection, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{prefix}.self_attn.{projection}_proj.weight", (rows, WIDTH)
            if family == "qwen2":
                yield f"{prefix}.self_attn.{projection}_proj.bias", (rows,)
        yield f"{prefix}.self_attn.o_proj.weight", (WIDTH, queries)
        if family in ("qwen3", "gemma3"):
            yield f"{prefix}.self_attn.q_norm.weight", (head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (head_dim,)
        for projection in ("gate", "up"):
            yield f"{prefix}.mlp.{projection}_proj.weight", (INNER, WIDTH)
        yield f"{prefix}.mlp.down_proj.weight", (WIDTH, INNER)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family == "gemma3":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            yield f"{prefix}.{norm}.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCAB, WIDTH)


if __name__ == "__main__":
    main()
