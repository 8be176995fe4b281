"""Determine the quantisation scheme of a checkpoint from `quantization_config` in config.json."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from octavo.checkpoint.quantized.column_major import Awq, Gptq
from octavo.checkpoint.quantized.compressed_tensors import CompressedTensors
from octavo.checkpoint.quantized.fp8 import Fp8
from octavo.checkpoint.quantized.refusal import unsupported
from octavo.checkpoint.quantized.weight import QuantizedWeight
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.errors import CheckpointError


class Scheme(Protocol):
    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, for the log."""

    def weights(self, store: SafetensorsStore) -> Iterator[tuple[str, QuantizedWeight]]:
        """Yield all quantised weights, each with the name of the tensor that contains its codes."""


_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "compressed-tensors": CompressedTensors.parse,
    "fp8": Fp8.parse,
    "gptq": Gptq.parse,
    "awq": Awq.parse,
}


def parse_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme of a checkpoint, or None if it is not quantised."""
    raw = config.get("quantization_config") or config.get("compression_config")
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise CheckpointError("quantization_config in config.json is not a JSON object. Download it again.")
    method = raw.get("quant_method", "compressed-tensors" if "config_groups" in raw else None)
    parse = _PARSERS.get(method) if isinstance(method, str) else None
    if parse is None:
        raise unsupported(f"quant_method {str(method)[:80]!r}")
    try:
        return parse(raw)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"quantization_config in config.json is malformed: {error}.") from error
