"""Quantised checkpoints: those that are found quantised, and those that are quantised while they are read."""

from collections.abc import Mapping
from typing import Any

from octavo.checkpoint.quantized.config import parse_scheme
from octavo.checkpoint.quantized.quantise import QuantisingStore, SchemeName
from octavo.checkpoint.quantized.store import QuantizedStore
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.checkpoint.tensors import TensorStore

__all__ = ["QuantisingStore", "QuantizedStore", "SchemeName", "present_plainly"]


def present_plainly(config: Mapping[str, Any], store: SafetensorsStore) -> TensorStore:
    """The store as it is, unless the config says that it is quantised."""
    scheme = parse_scheme(config)
    return store if scheme is None else QuantizedStore(store, scheme)
