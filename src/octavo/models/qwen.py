"""Qwen2, Qwen2.5 and Qwen3.

The layers differ from Llama's only in attention. Qwen2 has a bias on queries, keys and values, and none on
the output. Qwen3 normalises each head's query and key before rope, and the total size of its heads need not
equal the hidden size.
"""

from functools import partial

from octavo.models.config import ModelConfig
from octavo.models.layers import Decoder
from octavo.models.llama import LlamaLayer
from octavo.models.weights import WeightSet


def build_qwen2(config: ModelConfig, weights: WeightSet) -> Decoder:
    return Decoder(config, weights, partial(LlamaLayer, qkv_bias=True, output_bias=False, head_norms=False))


def build_qwen3(config: ModelConfig, weights: WeightSet) -> Decoder:
    bias = config.attention_bias
    return Decoder(config, weights, partial(LlamaLayer, qkv_bias=bias, output_bias=bias, head_norms=True))
