"""Build a model from its config, ready for its weights to be loaded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from octavo.models.config import ModelConfig, unknown_architecture
from octavo.models.gemma import build_gemma3
from octavo.models.llama import build_llama
from octavo.models.qwen import build_qwen2, build_qwen3
from octavo.models.weights import WeightSet, WeightTarget
from octavo.ops import KV, Batch, Ops


class Model(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: Batch, kv: Sequence[KV]) -> torch.Tensor:
        """Write the batch's keys and values into `kv` (one per layer) and return the hidden states after the
        final norm."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [R, vocab_size] for R rows of hidden states."""
        ...


_BUILDERS: Mapping[str, Callable[[ModelConfig, WeightSet], Model]] = {
    "Gemma3ForCausalLM": build_gemma3,
    "LlamaForCausalLM": build_llama,
    "MistralForCausalLM": build_llama,
    "Qwen2ForCausalLM": build_qwen2,
    "Qwen3ForCausalLM": build_qwen3,
}


def known_architectures() -> tuple[str, ...]:
    return tuple(_BUILDERS)


def build_model(
    config: ModelConfig, ops: Ops, formats: Mapping[str, str]
) -> tuple[Model, dict[str, WeightTarget]]:
    """Return the model and its weight targets, by the names of the checkpoint's tensors.

    The model's output is undefined until every target is written. `formats` contains the quantised formats of
    the checkpoint's matrices by name: `Checkpoint.formats`.
    """
    build = _BUILDERS.get(config.architecture)
    if build is None:
        raise unknown_architecture(config.architecture)
    weights = WeightSet(ops, formats)
    model = build(config, weights)
    return model, weights.targets
