"""Tiny random Llamas in every scheme, with the weights as the scheme's own library dequantises them.

compressed-tensors writes and reads its own formats and can read AWQ and block-wise FP8. No GPTQ library
installs on every platform, so GPTQ tensors are packed here by AutoGPTQ's definition.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.config import CompressionFormat
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from data.tiny_llama import write_byte_tokenizer

Tensors = dict[str, torch.Tensor]

HIDDEN, FEED_FORWARD = 128, 256


@dataclass(frozen=True)
class Made:
    """A checkpoint folder. `weights`: each quantised matrix, dequantised by its library in float32;
    `rounded`: the same in the dtype of its scales. `plain`: all other tensors."""

    folder: Path
    model: LlamaForCausalLM
    weights: Tensors
    rounded: Tensors
    plain: Tensors


def tiny_llama(hidden: int = HIDDEN, feed_forward: int = FEED_FORWARD) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=256,
        bos_token_id=None,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


# Maps a matrix to the tensors of its module and to their values, in float32 and in the dtype of the scales.
Encoded = tuple[Tensors, torch.Tensor, torch.Tensor]
Encode = Callable[[torch.Tensor], Encoded]


def make(
    folder: Path,
    quantization_config: Mapping[str, Any],
    encode: Encode | Mapping[str, Encode],
    *,
    hidden: int = HIDDEN,
    feed_forward: int = FEED_FORWARD,
) -> Made:
    """Quantise all matrices except embedding and head; each encoder takes the names that contain its key."""
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_llama(hidden, feed_forward)
    stored: Tensors = {}
    weights: Tensors = {}
    rounded: Tensors = {}
    plain: Tensors = {}
    for name, value in model.state_dict().items():
        module = name.removesuffix(".weight")
        if value.ndim != 2 or module in ("lm_head", "model.embed_tokens"):
            plain[name] = value
            continue
        chosen = (
            next(one for part, one in encode.items() if part in name)
            if isinstance(encode, Mapping)
            else encode
        )
        parts, weights[name], rounded[name] = chosen(value)
        stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    stored |= {name: value.contiguous() for name, value in plain.items()}
    save_file(stored, folder / "model.safetensors")
    write_byte_tokenizer(folder)
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    config["quantization_config"] = dict(quantization_config)
    (folder / "config.json").write_text(json.dumps(config))
    return Made(folder, model, weights, rounded, plain)


# -- compressed-tensors ------------------------------------------------------------------------------------


def weight_args(bits: int, kind: str = "int", **settings: Any) -> QuantizationArgs:
    return QuantizationArgs(num_bits=bits, type=kind, **settings)


def ranges(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and largest of the weights that share a scale."""
    match args.strategy:
        case "tensor":
            return weight.min().reshape(1), weight.max().reshape(1)
        case "channel":
            return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        case "group":
            groups = weight.unflatten(1, (-1, args.group_size))
            return groups.amin(2), groups.amax(2)
        case _:
            assert args.block_structure is not None
            high, wide = args.block_structure
            blocks = [rows.split(wide, 1) for rows in weight.split(high)]
            return (
                torch.stack([torch.stack([block.min() for block in row]) for row in blocks]),
                torch.stack([torch.stack([block.max() for block in row]) for row in blocks]),
            )


def meant_by_library(stored: Tensors, form: str, scheme: QuantizationScheme) -> Encoded:
    """The library multiplies in the dtype of the scales."""
    compressor = BaseCompressor.get_value_from_registry(form)
    scale = stored["weight_scale"]
    exact = stored | {"weight_scale": scale.float() if scale.is_floating_point() else scale}
    rounded = compressor.decompress(stored, scheme)["weight"]
    return stored, compressor.decompress(exact, scheme)["weight"].float(), rounded


def compressed(form: str, args: QuantizationArgs, dtype: torch.dtype) -> Encode:
    compressor = BaseCompressor.get_value_from_registry(form)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def encode(weight: torch.Tensor) -> Encoded:
        weight = weight.to(dtype)
        scale, zero = calculate_qparams(*ranges(weight, args), args)
        parts = {"weight": weight, "weight_scale": scale.to(dtype), "weight_zero_point": zero}
        return meant_by_library(compressor.compress(parts, scheme), form, scheme)

    return encode


def compressed_config(form: str, *args: QuantizationArgs, activations: bool = False) -> dict[str, Any]:
    inputs = weight_args(8, args[0].type, strategy="token", dynamic=True) if activations else None
    groups = {
        f"group_{index}": QuantizationScheme(targets=["Linear"], weights=one, input_activations=inputs)
        for index, one in enumerate(args)
    }
    config = QuantizationConfig(
        config_groups=groups, format=form, ignore=["lm_head"], quantization_status="compressed"
    )
    return json.loads(config.model_dump_json())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CompressedCase:
    form: str
    args: QuantizationArgs
    source_dtype: str  # as reported by our tensor store
    dtype: torch.dtype = torch.bfloat16
    activations: bool = False
    hidden: int = HIDDEN
    feed_forward: int = FEED_FORWARD

    def make(self, folder: Path) -> Made:
        config = compressed_config(self.form, self.args, activations=self.activations)
        encode = compressed(self.form, self.args, self.dtype)
        return make(folder, config, encode, hidden=self.hidden, feed_forward=self.feed_forward)


PACK = CompressionFormat.pack_quantized.value
INT = CompressionFormat.int_quantized.value
FLOAT = CompressionFormat.float_quantized.value
MXFP4 = CompressionFormat.mxfp4_pack_quantized.value
_GROUP = {"strategy": "group"}
_MX = {"strategy": "group", "group_size": 32, "scale_dtype": torch.uint8, "zp_dtype": torch.uint8}

_INT4_128 = weight_args(4, group_size=128, **_GROUP)
_FP8_TENSOR = weight_args(8, "float", strategy="tensor")

COMPRESSED: Mapping[str, CompressedCase] = {
    "w4a16-128": CompressedCase(PACK, _INT4_128, "INT4_128"),
    "w4a16-128-f32": CompressedCase(PACK, _INT4_128, "INT4_128", torch.float32),
    "w4a16-128-f16": CompressedCase(PACK, _INT4_128, "INT4_128", torch.float16),
    "w4a16-32": CompressedCase(PACK, weight_args(4, group_size=32, **_GROUP), "INT4_32"),
    "w4a16-64-asymmetric": CompressedCase(
        PACK, weight_args(4, group_size=64, symmetric=False, **_GROUP), "INT4_32"
    ),
    "w4a16-128-asymmetric": CompressedCase(
        PACK, weight_args(4, group_size=128, symmetric=False, **_GROUP), "INT4_128"
    ),
    "w4a16-16": CompressedCase(PACK, weight_args(4, group_size=16, **_GROUP), "F32"),
    "w4a16-channel": CompressedCase(PACK, weight_args(4, strategy="channel"), "INT4_128"),
    "w4a16-odd-rows": CompressedCase(
        PACK,
        weight_args(4, strategy="channel", symmetric=False),
        "F32",
        hidden=120,
        feed_forward=84,
    ),
    "w8a16-channel": CompressedCase(PACK, weight_args(8, strategy="channel"), "INT8_128"),
    "w8a16-32": CompressedCase(PACK, weight_args(8, group_size=32, **_GROUP), "INT8_32"),
    "w8a16-96": CompressedCase(
        PACK, weight_args(8, group_size=96, **_GROUP), "INT8_32", hidden=96, feed_forward=192
    ),
    "w8a16-asymmetric": CompressedCase(PACK, weight_args(8, strategy="channel", symmetric=False), "F32"),
    "w8a8-channel": CompressedCase(INT, weight_args(8, strategy="channel"), "INT8_128", activations=True),
    "w8a8-tensor": CompressedCase(INT, weight_args(8, strategy="tensor"), "INT8_128", activations=True),
    "w8a8-asymmetric": CompressedCase(INT, weight_args(8, strategy="channel", symmetric=False), "F32"),
    "fp8-tensor": CompressedCase(FLOAT, _FP8_TENSOR, "FP8_128", activations=True),
    "fp8-channel": CompressedCase(FLOAT, weight_args(8, "float", strategy="channel"), "FP8_128"),
    "fp8-channel-f32": CompressedCase(
        FLOAT, weight_args(8, "float", strategy="channel"), "FP8_128", torch.float32
    ),
    "fp8-block": CompressedCase(
        FLOAT, weight_args(8, "float", strategy="block", block_structure=[128, 128]), "FP8_128"
    ),
    "fp8-block-partial": CompressedCase(
        FLOAT,
        weight_args(8, "float", strategy="block", block_structure=[48, 64]),
        "FP8_32",
        hidden=96,
        feed_forward=224,
    ),
    "mxfp4": CompressedCase(MXFP4, weight_args(4, "float", **_MX), "MXFP4"),
}


# -- the others ----------------------------------------------------------------------------------------------


def integer_codes(weight: torch.Tensor, bits: int, group_size: int) -> tuple[torch.Tensor, ...]:
    """Return asymmetric codes [out, in], and float16 scales and zero points [out, groups]."""
    groups = weight.unflatten(1, (-1, group_size))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    top = 2**bits - 1
    scales = ((high - low) / top).half()
    zeros = (-low / scales.float()).round().clamp(0, top)
    codes = (groups / scales.float()[:, :, None] + zeros[:, :, None]).round().clamp(0, top)
    return codes.flatten(1).int(), scales, zeros.int()


def packed(codes: torch.Tensor, bits: int, dim: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack 32 / bits codes along `dim` into each word, with code `order[j]` at bit `j * bits`."""
    per_word = 32 // bits
    cut = codes.long().unflatten(dim, (-1, per_word)).movedim(dim + 1, -1)
    shifts = torch.arange(per_word) * bits
    words = (cut[..., list(order or range(per_word))] << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def gptq(bits: int, group_size: int, *, stored_less_one: bool, order: torch.Tensor | None = None) -> Encode:
    """`order`: the columns in the order of quantisation (by activation)."""

    def encode(weight: torch.Tensor) -> Encoded:
        k = weight.shape[1]
        size = k if group_size == -1 else group_size
        permutation = torch.arange(k) if order is None else order[order < k]
        codes, scales, zeros = integer_codes(weight[:, permutation], bits, size)
        back = torch.argsort(permutation)
        g_idx = (torch.arange(k) // size)[back]
        codes = codes[:, back]
        meant = (codes - zeros[:, g_idx]).float() * scales.float()[:, g_idx]
        stored_zeros = (zeros - int(stored_less_one)) % 2**bits
        parts = {
            "qweight": packed(codes.T, bits, 0),
            "qzeros": packed(stored_zeros.T, bits, 1),
            "scales": scales.T,
            "g_idx": g_idx.int(),
        }
        return parts, meant, meant

    return encode


def gptq_symmetric_8bit(weight: torch.Tensor) -> Encoded:
    scales = (weight.abs().amax(1, keepdim=True) / 127).half()
    codes = (weight / scales.float()).round().clamp(-128, 127).int() + 128
    parts = {
        "qweight": packed(codes.T, 8, 0),
        "qzeros": packed(torch.full((1, len(weight)), 127), 8, 1),
        "scales": scales.T,
        "g_idx": torch.zeros(weight.shape[1], dtype=torch.int32),
    }
    meant = (codes - 128).float() * scales.float()
    return parts, meant, meant


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(group_size: int) -> Encode:
    """compressed-tensors' converter defines the values of the tensors."""
    converter = AutoAWQConverter(group_size=group_size)
    args = weight_args(4, group_size=group_size, symmetric=False, strategy="group")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def encode(weight: torch.Tensor) -> Encoded:
        codes, scales, zeros = integer_codes(weight, 4, group_size)
        parts = {
            "qweight": packed(codes.T, 4, 1, AWQ_ORDER),
            "qzeros": packed(zeros.T, 4, 1, AWQ_ORDER),
            "scales": scales.T.contiguous(),
        }
        converted = converter.process({f"layer.{part}": tensor for part, tensor in parts.items()})
        own = {name.removeprefix("layer."): tensor for name, tensor in converted.items()}
        return parts, *meant_by_library(own, PACK, scheme)[1:]

    return encode


def fp8_blocks(block: tuple[int, int], dtype: torch.dtype = torch.float32) -> Encode:
    from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer

    args = weight_args(8, "float", strategy="block", block_structure=list(block))
    dequantizer = FP8BlockDequantizer(targets=["Linear"], weight_block_size=block, dtype=torch.float32)

    def encode(weight: torch.Tensor) -> Encoded:
        low, high = ranges(weight, args)
        scale = (torch.maximum(low.abs(), high.abs()) / 448).to(dtype)
        spread = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        spread = spread[: weight.shape[0], : weight.shape[1]]
        codes = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        parts = {"weight": codes, "weight_scale_inv": scale}
        own = dequantizer.process({f"layer.{part}": tensor for part, tensor in parts.items()})
        return parts, own["layer.weight"], own["layer.weight"]

    return encode


def fp8_tensor(weight: torch.Tensor) -> Encoded:
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    meant = codes.float() * scale
    return {"weight": codes, "weight_scale": scale, "input_scale": torch.ones(())}, meant, meant


@dataclass(frozen=True)
class OtherCase:
    config: Mapping[str, Any]
    encode: Encode
    source_dtype: str
    hidden: int = HIDDEN
    feed_forward: int = FEED_FORWARD

    def make(self, folder: Path) -> Made:
        return make(folder, self.config, self.encode, hidden=self.hidden, feed_forward=self.feed_forward)


def _gptq_config(bits: int, group_size: int, **settings: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": False} | settings


_ORDER = torch.randperm(FEED_FORWARD, generator=torch.Generator().manual_seed(1))
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
_FP8_BLOCKS = _FP8 | {"weight_block_size": [128, 128]}
_AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}

OTHERS: Mapping[str, OtherCase] = {
    "gptq-128": OtherCase(_gptq_config(4, 128), gptq(4, 128, stored_less_one=True), "INT4_128"),
    "gptq-32-v2": OtherCase(
        _gptq_config(4, 32, checkpoint_format="gptq_v2"), gptq(4, 32, stored_less_one=False), "INT4_32"
    ),
    "gptq-channel": OtherCase(_gptq_config(4, -1), gptq(4, -1, stored_less_one=True), "INT4_128"),
    "gptq-ordered": OtherCase(
        _gptq_config(4, 32, desc_act=True), gptq(4, 32, stored_less_one=True, order=_ORDER), "F32"
    ),
    "gptq-8-asymmetric": OtherCase(_gptq_config(8, 64), gptq(8, 64, stored_less_one=True), "F32"),
    "gptq-8": OtherCase(_gptq_config(8, -1), gptq_symmetric_8bit, "INT8_128"),
    "awq-128": OtherCase(_AWQ | {"group_size": 128}, awq(128), "INT4_128"),
    "awq-32": OtherCase(_AWQ | {"group_size": 32, "version": "GEMM"}, awq(32), "INT4_32"),
    "fp8-blocks": OtherCase(_FP8_BLOCKS, fp8_blocks((128, 128)), "FP8_128"),
    "fp8-blocks-bf16": OtherCase(_FP8_BLOCKS, fp8_blocks((128, 128), torch.bfloat16), "FP8_128"),
    "fp8-blocks-partial": OtherCase(
        _FP8_BLOCKS,
        fp8_blocks((128, 128)),
        "FP8_32",
        hidden=160,
        feed_forward=224,
    ),
    "fp8-per-tensor": OtherCase(_FP8, fp8_tensor, "FP8_128"),
}

CASES: Mapping[str, CompressedCase | OtherCase] = {**COMPRESSED, **OTHERS}
