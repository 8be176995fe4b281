"""The format of the compressed-tensors library: `quant_method: compressed-tensors`.

Each group of the config describes how some layers are stored. Patterns assign layers to groups, but the group
also follows from the names, types and shapes of a layer's tensors. This module uses the tensors and checks
them against the groups. It never runs a pattern from a file: matching could take forever.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.checkpoint.quantized.coded_rows import CodeKind
from octavo.checkpoint.quantized.mxfp4 import Mxfp4Weight
from octavo.checkpoint.quantized.refusal import unsupported
from octavo.checkpoint.quantized.row_major import RowMajor, ScaleGrid
from octavo.checkpoint.quantized.weight import SCALE_TYPES, Parts, QuantizedWeight
from octavo.checkpoint.safetensors_file import SafetensorsStore
from octavo.errors import CheckpointError

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
STRATEGIES = ("tensor", "channel", "group", "block")
MAX_GROUPS = 1000


class WeightArgs(msgspec.Struct, frozen=True):
    """How the numbers of weights or activations are coded."""

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: str | None = None
    block_structure: tuple[int, ...] | str | None = None

    def describe(self) -> str:
        size = f" of {self.group_size}" if self.group_size and self.group_size > 0 else ""
        zeros = "" if self.symmetric else ", asymmetric"
        return f"{self.num_bits}-bit {self.type} per {self.resolved_strategy()}{size}{zeros}"

    def resolved_strategy(self) -> str:
        if self.strategy is not None:
            return self.strategy
        if self.group_size is None:
            return "tensor"
        return "channel" if self.group_size == -1 else "group"

    def grid(self) -> ScaleGrid:
        match self.resolved_strategy():
            case "tensor":
                return ScaleGrid(None, None)
            case "channel":
                return ScaleGrid(1, None)
            case "group":
                return ScaleGrid(1, _positive(self.group_size, "group_size"))
            case _:
                structure = self.block_structure
                if isinstance(structure, str):  # "128x128" in some older files
                    sizes = structure[:40].split("x")
                    structure = tuple(int(size) if size.isdecimal() else 0 for size in sizes)
                if structure is None or len(structure) != 2:
                    raise CheckpointError(
                        f"quantization_config has the block_structure {structure!r}; it must be two sizes."
                    )
                rows, columns = (_positive(size, "block_structure") for size in structure)
                return ScaleGrid(rows, columns)


def _positive(size: int | None, what: str) -> int:
    if size is None or size <= 0:
        raise CheckpointError(f"quantization_config has the {what} {size!r}; it must be positive.")
    return size


class SchemeGroup(msgspec.Struct, frozen=True):
    weights: WeightArgs | None = None
    input_activations: WeightArgs | None = None
    output_activations: WeightArgs | None = None
    format: str | None = None


class CompressedConfig(msgspec.Struct, frozen=True):
    config_groups: dict[str, SchemeGroup]
    format: str | None = None
    kv_cache_scheme: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class CompressedTensors:
    """The quantisation schemes of one checkpoint."""

    schemes: tuple[WeightArgs, ...]
    notes: tuple[str, ...]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "CompressedTensors":
        config = msgspec.convert(raw, CompressedConfig)
        groups = list(config.config_groups.values())
        if len(groups) > MAX_GROUPS:
            raise CheckpointError(f"quantization_config has {len(groups)} groups; the limit is {MAX_GROUPS}.")
        for name in {config.format, *(group.format for group in groups)} - {None}:
            if name not in FORMATS:
                raise unsupported(f"format {name!r}")
        sparsity = (config.sparsity_config or {}).get("format", "dense")
        if sparsity != "dense":
            raise unsupported(f"the sparsity format {sparsity!r}")
        if (config.transform_config or {}).get("config_groups"):
            raise unsupported("transforms (transform_config)")
        given = [group.weights for group in groups if group.weights is not None]
        schemes = tuple(dict.fromkeys(map(_checked, given)))
        activations = [group.input_activations for group in groups if group.input_activations is not None]
        notes = {
            f"the checkpoint was made for {args.num_bits}-bit {args.type} activations;"
            " Octavo does not quantise activations"
            for args in activations
        }
        if config.kv_cache_scheme is not None:
            notes.add("the checkpoint has scales for a quantised KV cache; Octavo does not use them")
        return cls(schemes, tuple(sorted(notes)))

    def weights(self, store: SafetensorsStore) -> Iterator[tuple[str, QuantizedWeight]]:
        """Yield all quantised weights, each with the name of the tensor that contains its codes."""
        for name, entry in store.entries.items():
            module, _, part = name.rpartition(".")
            parts = Parts(store, module)
            if part == "weight_packed":
                yield name, self._mxfp4(parts) if entry.dtype == "U8" else self._packed(parts)
            elif part == "weight" and entry.dtype in ("I8", "F8_E4M3"):
                yield name, self._plain(parts, "int" if entry.dtype == "I8" else "float")

    def _packed(self, parts: Parts) -> QuantizedWeight:
        n, num_words = parts.entry("weight_packed", ("I32",), (None, None)).shape
        parts.entry("weight_shape", ("I64", "I32"), (2,))
        stored_n, k = (int(size) for size in parts.read("weight_shape"))
        fitting = [
            scheme
            for scheme in self._fitting(parts, "int", n, k)
            if scheme.num_bits in (4, 8) and num_words == -(-k * scheme.num_bits // 32)
        ]
        if stored_n != n or k <= 0 or not fitting:
            raise self._mismatch(parts, n, k)
        scheme = fitting[0]
        kind: CodeKind = "INT4" if scheme.num_bits == 4 else ("INT8" if scheme.symmetric else "UINT8")
        zeros = None
        if not scheme.symmetric:
            zeros = "weight_zero_point"
            columns = scheme.grid().shape(n, k)[1]
            packed = parts.entry(zeros, ("I32", "I8")).dtype == "I32"
            parts.entry(zeros, ("I32", "I8"), (-(-n * scheme.num_bits // 32) if packed else n, columns))
        return RowMajor(
            parts, kind, "weight_packed", scheme.num_bits, "weight_scale", scheme.grid(), zeros, (n, k)
        ).weight()

    def _plain(self, parts: Parts, kind: str) -> QuantizedWeight:
        n, k = parts.entry("weight", ("I8", "F8_E4M3"), (None, None)).shape
        fitting = [scheme for scheme in self._fitting(parts, kind, n, k) if scheme.num_bits == 8]
        if not fitting:
            raise self._mismatch(parts, n, k)
        scheme = fitting[0]
        zeros = None
        if kind == "int" and not scheme.symmetric:
            zeros = "weight_zero_point"
            parts.entry(zeros, ("I8",), (n, scheme.grid().shape(n, k)[1]))
        code_kind: CodeKind = "FP8" if kind == "float" else ("UINT8" if zeros else "INT8")
        return RowMajor(
            parts, code_kind, "weight", None, "weight_scale", scheme.grid(), zeros, (n, k)
        ).weight()

    def _mxfp4(self, parts: Parts) -> QuantizedWeight:
        n, half = parts.entry("weight_packed", ("U8",), (None, None)).shape
        if parts.has("weight_global_scale") or not any(_is_mxfp4(scheme) for scheme in self.schemes):
            raise unsupported(f"4-bit floats of {parts.module} that are not MXFP4")
        parts.entry("weight_scale", ("U8", "F8_E8M0"), (n, -(-half // 16)))
        return Mxfp4Weight(parts, (n, 2 * half))

    def _fitting(self, parts: Parts, kind: str, n: int, k: int) -> list[WeightArgs]:
        stored = parts.entry("weight_scale", SCALE_TYPES).shape
        return [
            scheme
            for scheme in self.schemes
            if scheme.type == kind and not _is_mxfp4(scheme) and k > 0 and scheme.grid().fits(stored, n, k)
        ]

    def _mismatch(self, parts: Parts, n: int, k: int) -> CheckpointError:
        known = "; ".join(scheme.describe() for scheme in self.schemes[:5]) or "none for weights"
        return CheckpointError(
            f"The tensors of {parts.module}, {n} x {k}, match no scheme in quantization_config"
            f" ({known}). Download the checkpoint again."
        )


def _is_mxfp4(scheme: WeightArgs) -> bool:
    return scheme.type == "float" and scheme.num_bits == 4 and scheme.group_size == 32


def _checked(args: WeightArgs) -> WeightArgs:
    """Return `args` if this module can decode them; raise otherwise, before any weight is read."""
    strategy = args.resolved_strategy()
    is_known = args.num_bits in {"int": (4, 8), "float": (8,)}.get(args.type, ())
    if _is_mxfp4(args):
        return args
    if not is_known or strategy not in STRATEGIES:
        raise unsupported(f"weights in {args.describe()}")
    if args.type == "float" and not args.symmetric:
        raise unsupported(f"weights in {args.describe()}")
    args.grid()
    return args
