"""The configuration of a model, parsed from a checkpoint's config.json. Does not import torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import CheckpointError


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency is divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequencies of long wavelengths are divided by `factor`, those of short wavelengths are kept, and those
    in between are interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class FactorScaling:
    """One divisor per frequency, as stored in GGUF files."""

    factors: tuple[float, ...]


@dataclass(frozen=True)
class RopeConfig:
    theta: float
    scaling: LinearScaling | Llama3Scaling | FactorScaling | None = None


@dataclass(frozen=True)
class LayerConfig:
    window: int | None  # a query at position p sees the keys in (p - window, p]; None: all up to p
    rope: RopeConfig


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    tie_embeddings: bool
    attention_bias: bool  # on all four projections; ignored for Qwen2
    mlp_bias: bool
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    layers: tuple[LayerConfig, ...]

    @staticmethod
    def from_huggingface(config: Mapping[str, Any]) -> "ModelConfig":
        """Parse config.json in both styles: `rope_theta` with `rope_scaling`, and `rope_parameters` as in
        transformers 5."""
        architecture = _architecture(config)
        fields = _ConfigFields(config, _DEFAULTS[architecture])
        fields.check_supported()
        num_heads = fields.integer("num_attention_heads")
        num_kv_heads = fields.optional_integer("num_key_value_heads") or num_heads
        head_dim = fields.optional_integer("head_dim") or fields.integer("hidden_size") // num_heads
        if num_heads % num_kv_heads or head_dim % 2:
            raise CheckpointError(
                f"config.json: {num_heads} attention heads of size {head_dim} are not possible with "
                f"{num_kv_heads} key-value heads; the checkpoint is damaged, download it again"
            )
        return ModelConfig(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=fields.integer("hidden_size"),
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_positions=fields.integer("max_position_embeddings"),
            norm_eps=fields.number("rms_norm_eps"),
            tie_embeddings=bool(fields.get("tie_word_embeddings")),
            attention_bias=bool(fields.get("attention_bias")),
            mlp_bias=bool(fields.get("mlp_bias")),
            # Not a power: its last bit depends on the C library.
            attention_scale=1 / math.sqrt(fields.optional_number("query_pre_attn_scalar") or head_dim),
            attention_softcap=fields.optional_number("attn_logit_softcapping"),
            logit_softcap=fields.optional_number("final_logit_softcapping"),
            layers=_layers(fields, head_dim),
        )


# Defaults of transformers. Layers from `max_window_layers` on may have a sliding window.
_COMMON: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
_QWEN: Mapping[str, Any] = {
    **_COMMON,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "LlamaForCausalLM": _COMMON,
    "MistralForCausalLM": {**_COMMON, "sliding_window": 4096},
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": {**_QWEN, "head_dim": 128},
    "Gemma3ForCausalLM": {
        **_COMMON,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
}

_SLIDING, _FULL = "sliding_attention", "full_attention"


def unknown_architecture(name: str) -> CheckpointError:
    known = ", ".join(sorted(_DEFAULTS))
    return CheckpointError(f"the architecture {name} is not supported; use a checkpoint with one of: {known}")


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) != 1:
        raise CheckpointError(
            f"config.json: 'architectures' must contain one architecture, but it is {names!r}"
        )
    name = str(names[0])
    if name not in _DEFAULTS:
        raise unknown_architecture(name)
    return name


@dataclass(frozen=True)
class _ConfigFields:
    """A config.json with its family's defaults. null is the same as absent, except for `sliding_window`."""

    config: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def get(self, name: str) -> Any:
        value = self.config.get(name)
        return self.defaults.get(name) if value is None else value

    def number(self, name: str) -> float:
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckpointError(f"config.json: '{name}' must be a number, but it is {value!r}")
        return float(value)

    def integer(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise CheckpointError(f"config.json: '{name}' must be a positive integer, but it is {value!r}")
        return value

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def optional_integer(self, name: str) -> int | None:
        return None if self.get(name) is None else self.integer(name)

    def window(self) -> int | None:
        """Return the size of the sliding window. null disables it, absent means the family's default, and
        Llama never has one."""
        if "sliding_window" not in self.defaults or not self.get("use_sliding_window"):
            return None
        value = self.config.get("sliding_window", self.defaults["sliding_window"])
        return None if value is None else self.integer("sliding_window")

    def check_supported(self) -> None:
        activation = self.get("hidden_activation") or self.get("hidden_act")
        if activation != self.defaults["hidden_act"]:
            raise CheckpointError(
                f"config.json: the activation {activation!r} is not supported for this architecture, "
                f"only {self.defaults['hidden_act']!r}"
            )
        if self.get("use_bidirectional_attention"):
            raise CheckpointError(
                "config.json: the model has bidirectional attention; it is an embedding model and cannot "
                "generate text"
            )


def _layers(fields: _ConfigFields, head_dim: int) -> tuple[LayerConfig, ...]:
    windows = {_SLIDING: fields.window(), _FULL: None}
    kinds = _layer_kinds(fields)
    ropes = {kind: _rope(fields, kind, head_dim) for kind in dict.fromkeys(kinds)}
    return tuple(LayerConfig(windows[kind], ropes[kind]) for kind in kinds)


def _layer_kinds(fields: _ConfigFields) -> list[str]:
    num_layers = fields.integer("num_hidden_layers")
    kinds = fields.get("layer_types")
    if kinds is not None:
        if len(kinds) != num_layers or not set(kinds) <= {_SLIDING, _FULL}:
            raise CheckpointError(
                f"config.json: 'layer_types' must be '{_SLIDING}' or '{_FULL}' for each of {num_layers} "
                f"layers, but it is {kinds!r}"
            )
        return list(kinds)
    if fields.get("sliding_window_pattern") is not None:  # Gemma: every n-th layer is global
        pattern = fields.integer("sliding_window_pattern")
        return [_SLIDING if (index + 1) % pattern else _FULL for index in range(num_layers)]
    first_sliding = int(fields.number("max_window_layers"))
    return [_FULL if index < first_sliding else _SLIDING for index in range(num_layers)]


def _rope(fields: _ConfigFields, kind: str, head_dim: int) -> RopeConfig:
    """Return the rope parameters for layers of this kind.

    Gemma's sliding layers have their own base, and parameters that are not per kind do not apply to them.
    """
    local = kind == _SLIDING and fields.get("rope_local_base_freq") is not None
    theta = fields.number("rope_local_base_freq" if local else "rope_theta")
    parameters = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if _SLIDING in parameters or _FULL in parameters:
        parameters = parameters.get(kind) or {}
    elif local:
        parameters = {}
    rope = _ConfigFields(parameters, {"rope_theta": theta, "partial_rotary_factor": 1.0})
    if rope.number("partial_rotary_factor") != 1.0:
        raise CheckpointError("config.json: 'partial_rotary_factor' other than 1 is not supported")
    scaling = _scaling(rope, fields.integer("max_position_embeddings"), head_dim)
    return RopeConfig(rope.number("rope_theta"), scaling)


def _scaling(
    parameters: _ConfigFields, max_positions: int, head_dim: int
) -> LinearScaling | Llama3Scaling | FactorScaling | None:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(parameters.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=parameters.number("factor"),
                low_freq_factor=parameters.number("low_freq_factor"),
                high_freq_factor=parameters.number("high_freq_factor"),
                original_max_positions=parameters.optional_integer("original_max_position_embeddings")
                or max_positions,
            )
        case "factors":
            factors = tuple(float(factor) for factor in parameters.get("factors") or ())
            if len(factors) != head_dim // 2:
                raise CheckpointError(
                    f"{len(factors)} rope factors do not match a head size of {head_dim}; "
                    f"expected {head_dim // 2}"
                )
            return FactorScaling(factors)
    raise CheckpointError(
        f"the rope scaling {kind!r} is not supported, only default, linear, llama3 and factors; if it "
        "only extends the context, remove it from config.json to run with the context length of the training"
    )
