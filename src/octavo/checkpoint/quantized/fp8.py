"""`quant_method: fp8`, used by Qwen3-8B-FP8 and DeepSeek: float8_e4m3fn with one scale per weight block of
`weight_block_size`, or one per tensor. The scale in `weight_scale_inv` is the factor, despite its name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.checkpoint.quantized.refusal import unsupported
from octavo.checkpoint.quantized.row_major import RowMajor, ScaleGrid
from octavo.checkpoint.quantized.weight import SCALE_TYPES, Parts, QuantizedWeight
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.errors import CheckpointError


class Fp8Config(msgspec.Struct, frozen=True):
    weight_block_size: tuple[int, int] | None = None
    activation_scheme: str | None = None
    fmt: str = "e4m3"


@dataclass(frozen=True)
class Fp8:
    grid: ScaleGrid
    notes: tuple[str, ...]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Fp8":
        config = msgspec.convert(raw, Fp8Config)
        if config.fmt not in ("e4m3", "float8_e4m3fn"):
            raise unsupported(f"fp8 in the format {config.fmt!r}")
        grid = ScaleGrid(None, None)
        if config.weight_block_size is not None:
            if min(config.weight_block_size) <= 0:
                raise CheckpointError("quantization_config has a weight_block_size that is not positive.")
            grid = ScaleGrid(*config.weight_block_size)
        notes = ("the checkpoint was made for 8-bit float activations; Octavo does not quantise activations",)
        return cls(grid, notes if config.activation_scheme is not None else ())

    def weights(self, store: SafetensorsStore) -> Iterator[tuple[str, QuantizedWeight]]:
        for name, entry in store.entries.items():
            module, _, part = name.rpartition(".")
            if part == "weight" and entry.dtype == "F8_E4M3":
                yield name, self._weight(Parts(store, module))

    def _weight(self, parts: Parts) -> QuantizedWeight:
        n, k = parts.entry("weight", ("F8_E4M3",), (None, None)).shape
        part = "weight_scale_inv" if parts.has("weight_scale_inv") else "weight_scale"
        stored = parts.entry(part, (*SCALE_TYPES, "F8_E8M0")).shape
        for grid in (self.grid, ScaleGrid(None, None), ScaleGrid(1, None)):
            if grid.fits(stored, n, k):
                return RowMajor(parts, "FP8", "weight", None, part, grid, None, (n, k)).weight()
        raise CheckpointError(
            f"{parts.module}.{part} has the shape {list(stored)}, which fits neither the weight, {n} x {k}, "
            "nor the weight_block_size of quantization_config. Download the checkpoint again."
        )
