"""Qwen2, Qwen2.5 and Qwen3.

A Llama layer but for attention: Qwen2 has a bias on queries, keys and values, and none on the output; Qwen3
normalises each head's query and key before rope, and its heads need not add up to the hidden size.
"""

from functools import partial

import torch

from octavo.models.blocks import Attention, Decoder, GatedMlp
from octavo.models.config import LayerConfig, ModelConfig
from octavo.models.weights import WeightSet
from octavo.ops import Batch, LayerKV, RopeTable


class QwenLayer:
    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        weights: WeightSet,
        name: str,
        rope: RopeTable,
        *,
        qkv_bias: bool,
        output_bias: bool,
        head_norms: bool,
    ) -> None:
        self.ops = weights.ops
        head_norm = partial(weights.norm, size=config.head_dim, eps=config.norm_eps)
        self.input_norm = weights.norm(f"{name}.input_layernorm", config.hidden_size, config.norm_eps)
        self.attention = Attention(
            config,
            layer,
            weights,
            f"{name}.self_attn",
            rope,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            query_norm=head_norm(f"{name}.self_attn.q_norm") if head_norms else None,
            key_norm=head_norm(f"{name}.self_attn.k_norm") if head_norms else None,
        )
        self.mlp_norm = weights.norm(f"{name}.post_attention_layernorm", config.hidden_size, config.norm_eps)
        self.mlp = GatedMlp(config, weights, f"{name}.mlp", weights.ops.swiglu)

    def forward(self, stream: torch.Tensor, batch: Batch, kv: LayerKV) -> torch.Tensor:
        ops = self.ops
        attended = self.attention.forward(ops.rms_norm(stream, self.input_norm), batch, kv)
        stream, x = ops.add_rms_norm(stream, attended, self.mlp_norm)
        return ops.add(stream, self.mlp.forward(x))


def build_qwen2(config: ModelConfig, weights: WeightSet) -> Decoder:
    return Decoder(config, weights, partial(QwenLayer, qkv_bias=True, output_bias=False, head_norms=False))


def build_qwen3(config: ModelConfig, weights: WeightSet) -> Decoder:
    bias = config.attention_bias
    return Decoder(config, weights, partial(QwenLayer, qkv_bias=bias, output_bias=bias, head_norms=True))
