"""Types of the fixture that writes small GGUF models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import numpy as np
from gguf.constants import GGMLQuantizationType as Kind

from data.json_types import Json


class GgufOptions(TypedDict, total=False):
    layers: int
    metadata: Mapping[str, Json] | None
    without: tuple[str, ...]
    tensors: Mapping[str, np.ndarray] | None
    kind: Kind  # of the matrices
    kinds: Mapping[str, Kind]  # of individual matrices
    hidden: int


class WriteGguf(Protocol):
    def __call__(
        self, path: Path, architecture: str = "llama", **options: Unpack[GgufOptions]
    ) -> dict[str, np.ndarray]: ...
