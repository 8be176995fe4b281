"""Llama 2 and 3, SmolLM2, Mistral.

The plain decoder: a norm before each block, no biases unless the config asks for them. Llama 3's rope
scaling and Mistral's sliding window are in the config's layers, and SmolLM2's head is its embedding.
"""

import torch

from octavo.models.blocks import Attention, Decoder, GatedMlp
from octavo.models.config import LayerConfig, ModelConfig
from octavo.models.weights import WeightSet
from octavo.ops import Batch, LayerKV, RopeTable


class LlamaLayer:
    def __init__(
        self, config: ModelConfig, layer: LayerConfig, weights: WeightSet, name: str, rope: RopeTable
    ) -> None:
        self.ops = weights.ops
        self.input_norm = weights.norm(f"{name}.input_layernorm", config.hidden_size, config.norm_eps)
        self.attention = Attention(
            config,
            layer,
            weights,
            f"{name}.self_attn",
            rope,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
        )
        self.mlp_norm = weights.norm(f"{name}.post_attention_layernorm", config.hidden_size, config.norm_eps)
        self.mlp = GatedMlp(config, weights, f"{name}.mlp", weights.ops.swiglu)

    def forward(self, stream: torch.Tensor, batch: Batch, kv: LayerKV) -> torch.Tensor:
        ops = self.ops
        attended = self.attention.forward(ops.rms_norm(stream, self.input_norm), batch, kv)
        stream, x = ops.add_rms_norm(stream, attended, self.mlp_norm)
        return ops.add(stream, self.mlp.forward(x))


def build_llama(config: ModelConfig, weights: WeightSet) -> Decoder:
    return Decoder(config, weights, LlamaLayer)
