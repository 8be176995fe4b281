"""The parts that all decoder families share. Differences between families are arguments."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from octavo.models.config import LayerConfig, ModelConfig
from octavo.models.rope import inverse_frequencies
from octavo.models.weights import WeightSet
from octavo.ops import KV, AttentionSpec, Batch, Norm, RopeTable


class Attention:
    """Projections, optional norms of queries and keys, rope, attention over KV blocks, output projection."""

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
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
    ) -> None:
        self.ops = weights.ops
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim
        self.rope = rope
        self.spec = AttentionSpec(config.attention_scale, layer.window, config.attention_softcap)
        self.query_norm = query_norm
        self.key_norm = key_norm
        names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        rows = {part: heads * self.head_dim for part, heads in zip(names, self.heads, strict=True)}
        self.qkv = weights.linear(rows, config.hidden_size, bias=qkv_bias)
        self.output = weights.linear(
            {f"{name}.o_proj": config.hidden_size}, config.num_heads * self.head_dim, bias=output_bias
        )

    def forward(self, x: torch.Tensor, batch: Batch, kv: KV) -> torch.Tensor:
        ops = self.ops
        query, key, value = ops.split_heads(ops.linear(x, self.qkv), self.heads, self.head_dim)
        if self.query_norm is not None:
            query = ops.rms_norm(query, self.query_norm)
        if self.key_norm is not None:
            key = ops.rms_norm(key, self.key_norm)
        query, key = ops.rope(query, key, batch, self.rope)
        attended = ops.attention(query, key, value, batch=batch, kv=kv, spec=self.spec)
        return ops.linear(attended, self.output)


class GatedMlp:
    """down(activation(gate, up)); `activation` is `ops.swiglu` or `ops.geglu`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSet,
        name: str,
        activation: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.ops = weights.ops
        self.activation = activation
        inner = config.intermediate_size
        self.gate_up = weights.linear(
            {f"{name}.gate_proj": inner, f"{name}.up_proj": inner}, config.hidden_size, bias=config.mlp_bias
        )
        self.down = weights.linear({f"{name}.down_proj": config.hidden_size}, inner, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.linear(self.activation(self.ops.linear(x, self.gate_up)), self.down)


class Layer(Protocol):
    def forward(self, stream: torch.Tensor, batch: Batch, kv: KV) -> torch.Tensor: ...


MakeLayer = Callable[[ModelConfig, LayerConfig, WeightSet, str, RopeTable], Layer]


class Decoder:
    """Embedding, layers, final norm, head. `make_layer` makes the layers of a family."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSet,
        make_layer: MakeLayer,
        *,
        embedding_scale: float = 1.0,
        norm_offset: float = 0.0,
    ) -> None:
        self.config = config
        self.ops = weights.ops
        self.embedding_scale = embedding_scale
        self.embedding = weights.embedding("model.embed_tokens", config.vocab_size, config.hidden_size)
        ropes = {
            rope: weights.ops.new_rope(inverse_frequencies(rope, config.head_dim))
            for rope in dict.fromkeys(layer.rope for layer in config.layers)
        }
        self.layers = [
            make_layer(config, layer, weights, f"model.layers.{index}", ropes[layer.rope])
            for index, layer in enumerate(config.layers)
        ]
        self.norm = weights.norm("model.norm", config.hidden_size, config.norm_eps, offset=norm_offset)
        self.head = (
            self.embedding
            if config.tie_embeddings
            else weights.linear({"lm_head": config.vocab_size}, config.hidden_size)
        )

    def forward(self, batch: Batch, kv: Sequence[KV]) -> torch.Tensor:
        """Return the hidden states after the final norm, [T, hidden_size]."""
        stream = self.ops.embedding(self.embedding, batch.token_ids, scale=self.embedding_scale)
        for layer, layer_kv in zip(self.layers, kv, strict=True):
            stream = layer.forward(stream, batch, layer_kv)
        return self.ops.rms_norm(stream, self.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, vocab_size]."""
        return self.ops.logits(hidden, self.head, softcap=self.config.logit_softcap)
