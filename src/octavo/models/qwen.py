"""Qwen2, Qwen2.5 and Qwen3.

A Llama layer but for attention: Qwen2 has a bias on queries, keys and values, and none on the output; Qwen3
normalises each head's query and key before rope, and its heads need not add up to the hidden size.
"""

from functools import partial

from octavo.models.blocks import Decoder
from octavo.models.config import ModelConfig
from octavo.models.llama import LlamaLayer
from octavo.models.weights import WeightSet


def build_qwen2(config: ModelConfig, weights: WeightSet) -> Decoder:
    return Decoder(config, weights, partial(LlamaLayer, qkv_bias=True, output_bias=False, head_norms=False))


def build_qwen3(config: ModelConfig, weights: WeightSet) -> Decoder:
    bias = config.attention_bias
    return Decoder(config, weights, partial(LlamaLayer, qkv_bias=bias, output_bias=bias, head_norms=True))
