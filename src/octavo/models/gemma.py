"""Gemma 3, text only.

Attention and the MLP have a norm before and after them; checkpoints contain the gain minus one. Queries and
keys are normalised per head. Embeddings are scaled by the square root of the hidden size, and the MLP is
gated by gelu. Most layers have a sliding window and a few are global, each kind with its own rope base; this
is in `ModelConfig.layers`.
"""

import math
from functools import partial

import torch

from octavo.models.config import LayerConfig, ModelConfig
from octavo.models.layers import Attention, Decoder, GatedMlp
from octavo.models.weights import WeightSet
from octavo.ops import KV, Batch, RopeTable

_NORM_OFFSET = 1.0


class GemmaLayer:
    def __init__(
        self, config: ModelConfig, layer: LayerConfig, weights: WeightSet, name: str, rope: RopeTable
    ) -> None:
        self.ops = weights.ops
        norm = partial(weights.norm, size=config.hidden_size, eps=config.norm_eps, offset=_NORM_OFFSET)
        head_norm = partial(weights.norm, size=config.head_dim, eps=config.norm_eps, offset=_NORM_OFFSET)
        self.input_norm = norm(f"{name}.input_layernorm")
        self.attention = Attention(
            config,
            layer,
            weights,
            f"{name}.self_attn",
            rope,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            query_norm=head_norm(f"{name}.self_attn.q_norm"),
            key_norm=head_norm(f"{name}.self_attn.k_norm"),
        )
        self.attended_norm = norm(f"{name}.post_attention_layernorm")
        self.mlp_norm = norm(f"{name}.pre_feedforward_layernorm")
        self.mlp = GatedMlp(config, weights, f"{name}.mlp", weights.ops.geglu)
        self.mlp_output_norm = norm(f"{name}.post_feedforward_layernorm")

    def forward(self, stream: torch.Tensor, batch: Batch, kv: KV) -> torch.Tensor:
        ops = self.ops
        attended = self.attention.forward(ops.rms_norm(stream, self.input_norm), batch, kv)
        stream, x = ops.add_rms_norm(stream, ops.rms_norm(attended, self.attended_norm), self.mlp_norm)
        return ops.add(stream, ops.rms_norm(self.mlp.forward(x), self.mlp_output_norm))


def build_gemma3(config: ModelConfig, weights: WeightSet) -> Decoder:
    scale = math.sqrt(config.hidden_size)
    return Decoder(config, weights, GemmaLayer, embedding_scale=scale, norm_offset=_NORM_OFFSET)
