"""Quantised checkpoints: stored in a quantised format, or quantised while they are read."""

from collections.abc import Mapping
from typing import Any

from octavo.checkpoint.quantized.config import parse_scheme
from octavo.checkpoint.quantized.quantise import QuantisingStore, SchemeName
from octavo.checkpoint.quantized.store import QuantizedStore
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.checkpoint.tensors import TensorStore

__all__ = ["QuantisingStore", "QuantizedStore", "SchemeName", "open_plain_store"]


def open_plain_store(config: Mapping[str, Any], store: SafetensorsStore) -> TensorStore:
    """Return `store`, wrapped to yield plain weights if the config describes a quantised checkpoint."""
    scheme = parse_scheme(config)
    return store if scheme is None else QuantizedStore(store, scheme)
