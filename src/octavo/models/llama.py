"""Llama 2 and 3, SmolLM2, Mistral.

The plain decoder: a norm before attention and before the MLP, and no biases unless the config enables them.
Llama 3's rope scaling and Mistral's sliding window are in `ModelConfig.layers`. SmolLM2 uses its embedding as
the head.
"""

from functools import partial

import torch

from octavo.models.config import LayerConfig, ModelConfig
from octavo.models.layers import Attention, Decoder, GatedMlp
from octavo.models.weights import WeightSet
from octavo.ops import KV, Batch, RopeTable


class LlamaLayer:
    """A layer of Llama and Qwen. The keyword arguments are the differences between them."""

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

    def forward(self, stream: torch.Tensor, batch: Batch, kv: KV) -> torch.Tensor:
        ops = self.ops
        attended = self.attention.forward(ops.rms_norm(stream, self.input_norm), batch, kv)
        stream, x = ops.add_rms_norm(stream, attended, self.mlp_norm)
        return ops.add(stream, self.mlp.forward(x))


def build_llama(config: ModelConfig, weights: WeightSet) -> Decoder:
    bias = config.attention_bias
    return Decoder(config, weights, partial(LlamaLayer, qkv_bias=bias, output_bias=bias, head_norms=False))
