from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from data.json_types import Json
from octavo.errors import CheckpointError
from octavo.models.config import ModelConfig
from octavo.models.registry import build_model, known_architectures
from octavo.ops import Batch, BatchSequence, LayerKV, select_ops
from octavo.ops.torch_ops import TorchOps


def _config(architecture: str, **changes: Json) -> ModelConfig:
    return ModelConfig.from_huggingface(
        {
            "architectures": [architecture],
            "vocab_size": 20,
            "hidden_size": 8,
            "intermediate_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 6,
            "max_position_embeddings": 64,
            **changes,
        }
    )


def test_the_error_for_an_unknown_architecture_lists_the_known_ones() -> None:
    config = replace(_config("LlamaForCausalLM"), architecture="MambaForCausalLM")
    with pytest.raises(CheckpointError, match=f"MambaForCausalLM.*{', '.join(known_architectures())}"):
        build_model(config, select_ops("cpu", torch.float32), {})


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_a_tied_head_has_no_target(architecture: str) -> None:
    ops = select_ops("cpu", torch.float32)
    for tied in (True, False):
        _, targets = build_model(_config(architecture, tie_word_embeddings=tied), ops, {})
        assert ("lm_head.weight" in targets) is not tied


def test_qwen2_has_no_output_bias_regardless_of_the_config() -> None:
    _, targets = build_model(
        _config("Qwen2ForCausalLM", attention_bias=True), select_ops("cpu", torch.float32), {}
    )
    biases = {name.split(".")[-2] for name in targets if name.endswith(".bias")}
    assert biases == {"q_proj", "k_proj", "v_proj"}


class _Opaque:
    """A placeholder for a tensor without any methods or operators."""


class _OpaqueOps:
    """Accepts and returns opaque values and records the calls, as a step tape does."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._torch = TorchOps(torch.device("cpu"), torch.float32)

    def __getattr__(self, name: str) -> Callable[..., object]:
        operation: Callable[..., object] = getattr(self._torch, name)
        if name.startswith("new_"):
            return operation
        num_results = {"split_heads": 3, "rope": 2, "add_rms_norm": 2}.get(name)

        def note(*_args: object, **_kwargs: object) -> object:
            self.calls.append(name)
            return _Opaque() if num_results is None else tuple(_Opaque() for _ in range(num_results))

        return note


@pytest.mark.parametrize("architecture", known_architectures())
def test_models_use_tensors_through_ops_only(architecture: str) -> None:
    ops = _OpaqueOps()
    model, _ = build_model(_config(architecture), ops, {})  # type: ignore[arg-type]
    nothing = torch.empty(0)
    zero = torch.zeros(1, dtype=torch.int64)
    batch = Batch.of(zero, zero, zero, (BatchSequence(0, 1, 1, zero),), 4)
    hidden = model.forward(batch, [LayerKV(nothing, nothing)] * 2)
    assert isinstance(model.logits(hidden), _Opaque)
    assert ops.calls.count("attention") == 2
    assert (ops.calls[0], ops.calls[-1]) == ("embedding", "logits")
