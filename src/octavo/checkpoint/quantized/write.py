"""Write a quantised checkpoint in the format of compressed-tensors, which other engines read too.

The new folder appears complete or not at all: it is written under a temporary name and then renamed.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from octavo.checkpoint.quantized.coded_rows import CodedRows, Coding
from octavo.checkpoint.quantized.quantise import KEPT, QuantisingStore, SchemeName, scale_type
from octavo.checkpoint.safetensors_file import DTYPE_BITS, INDEX_NAME
from octavo.checkpoint.tensors import TensorStore
from octavo.errors import CheckpointError, ConfigError

SHARD_BYTES = 5 * 10**9
# Files besides the weights: tokenizer, templates, settings, model card.
COPIED_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".md"})
COPIED_NAMES = frozenset({"LICENSE", "NOTICE"})
NOT_COPIED = frozenset({"config.json", INDEX_NAME})

_TO_INT8 = np.uint8(0x80)


@dataclass(frozen=True)
class OutputTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class OutputWeight:
    """One tensor of the source and the tensors that are written for it."""

    source_name: str
    coding: Coding | None
    tensors: tuple[OutputTensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def write_quantised(
    folder: Path,
    config: Mapping[str, Any],
    source: TensorStore,
    scheme: SchemeName,
    out: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    on_written: Callable[[int], object] = lambda _: None,
) -> None:
    """Quantise the checkpoint `source` and write it to the folder `out`.

    `folder` and `config` belong to the source. `on_written` is called with numbers of processed source bytes.
    """
    if config.get("quantization_config") or config.get("compression_config"):
        raise ConfigError(f"{folder} is already quantised; use an unquantised checkpoint")
    store = QuantisingStore(source, scheme)
    weights = [_plan(store, name) for name in store.tensors]
    if not any(weight.coding for weight in weights):
        raise CheckpointError(f"{folder} has no matrix that can be quantised.")
    with _new_folder(out) as place:
        for file in sorted(folder.iterdir()):
            is_copied = file.suffix in COPIED_SUFFIXES or file.name in COPIED_NAMES
            if is_copied and file.name not in NOT_COPIED and file.is_file():
                shutil.copyfile(file, place / file.name)
        settings = {**config, "quantization_config": _quantization_config(weights, scheme)}
        (place / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        shards = _split(weights, shard_bytes)
        names = _shard_names(len(shards))
        for name, shard in zip(names, shards, strict=True):
            _write_shard(place / name, shard, store, on_written)
        if len(shards) > 1:
            _write_index(place, names, shards)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} already exists; choose another name")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        try:
            place.chmod(0o755)
            yield place
            place.rename(out)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except OSError as error:
        raise CheckpointError(f"Cannot write {out}: {error.strerror}.") from error


def _plan(store: QuantisingStore, name: str) -> OutputWeight:
    info, coding = store.source.tensors[name], store.coding(name)
    if coding is None:
        return OutputWeight(name, None, (OutputTensor(name, info.source_dtype, info.shape),))
    module = name.removesuffix(".weight")
    n, k = info.shape
    tensors = (
        OutputTensor(f"{module}.weight_packed", "I32", (n, k * _bits(coding) // 32)),
        OutputTensor(f"{module}.weight_scale", scale_type(info.source_dtype), (n, coding.num_groups)),
        OutputTensor(f"{module}.weight_shape", "I64", (2,)),
    )
    return OutputWeight(name, coding, tensors)


def _bits(coding: Coding) -> int:
    return 4 if coding.kind == "INT4" else 8


# -- the config ------------------------------------------------------------------------------------------


def _quantization_config(weights: Sequence[OutputWeight], scheme: SchemeName) -> dict[str, Any]:
    """Return the quantization_config. The most common group size applies to all linear layers; any other size
    lists its layers."""
    by_size: dict[int, list[str]] = {}
    ignored = {"lm_head"}
    for weight in weights:
        module = weight.source_name.removesuffix(".weight")
        if weight.coding is not None:
            size = weight.coding.group_size if scheme == "int4" else -1
            by_size.setdefault(size, []).append(module)
        elif len(weight.tensors[0].shape) == 2 and module.rpartition(".")[2] not in KEPT:
            ignored.add(module)
    sizes = sorted(by_size, key=lambda size: len(by_size[size]), reverse=True)
    groups = {
        f"group_{index}": {
            "targets": ["Linear"] if index == 0 else by_size[size],
            "weights": _weight_args(scheme, size),
            "input_activations": None,
            "output_activations": None,
        }
        for index, size in enumerate(sizes)
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": sorted(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _weight_args(scheme: SchemeName, group_size: int) -> dict[str, Any]:
    return {
        "num_bits": 4 if scheme == "int4" else 8,
        "type": "int",
        "symmetric": True,
        "strategy": "group" if scheme == "int4" else "channel",
        "group_size": group_size if scheme == "int4" else None,
        "block_structure": None,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }


# -- the weights -----------------------------------------------------------------------------------------


def _split(weights: Sequence[OutputWeight], limit: int) -> list[list[OutputWeight]]:
    """Split the weights into shards of whole weights, up to `limit` bytes, in the order of the source."""
    shards: list[list[OutputWeight]] = [[]]
    size = 0
    for weight in weights:
        if shards[-1] and size + weight.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(weight)
        size += weight.nbytes
    return shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{index:05d}-of-{count:05d}.safetensors" for index in range(1, count + 1)]


def _write_index(place: Path, names: Sequence[str], shards: Sequence[Sequence[OutputWeight]]) -> None:
    weight_map = {
        tensor.name: name
        for name, shard in zip(names, shards, strict=True)
        for weight in shard
        for tensor in weight.tensors
    }
    total = sum(weight.nbytes for shard in shards for weight in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (place / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def _write_shard(
    path: Path, weights: Sequence[OutputWeight], store: QuantisingStore, on_written: Callable[[int], object]
) -> None:
    # Tensors with the largest elements first, so that every tensor is aligned to the size of its elements.
    tensors = [tensor for weight in weights for tensor in weight.tensors]
    tensors.sort(key=lambda tensor: DTYPE_BITS[tensor.dtype], reverse=True)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        end = position + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        starts = {tensor.name: 8 + len(text) + header[tensor.name]["data_offsets"][0] for tensor in tensors}
        for weight in weights:
            _write_weight(file, weight, starts, store, on_written)
        file.truncate(8 + len(text) + position)
        file.flush()
        os.fsync(file.fileno())


def _write_weight(
    file: BinaryIO,
    weight: OutputWeight,
    starts: Mapping[str, int],
    store: QuantisingStore,
    on_written: Callable[[int], object],
) -> None:
    places = [starts[tensor.name] for tensor in weight.tensors]

    def append(index: int, values: npt.NDArray[Any]) -> None:
        file.seek(places[index])
        file.write(np.ascontiguousarray(values).data)
        places[index] += values.nbytes

    if weight.coding is None:
        for chunk in store.source.chunks(weight.source_name):
            append(0, chunk.values)
            on_written(chunk.source_nbytes)
        return
    for chunk, rows in store.quantised(weight.source_name, weight.coding):
        append(0, _packed(rows, weight.coding))
        append(1, _in_type(rows.scales, weight.tensors[1].dtype))
        on_written(chunk.source_nbytes)
    append(2, np.array(store.source.tensors[weight.source_name].shape, dtype=np.int64))


def _packed(rows: CodedRows, coding: Coding) -> npt.NDArray[np.uint8]:
    """Return the codes as bytes of little-endian words. 8-bit codes are stored with 128 added; 4-bit codes
    already have 8 added."""
    return rows.codes if coding.kind == "INT4" else rows.codes.view(np.uint8) ^ _TO_INT8


def _in_type(scales: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """Convert scales to `dtype` without loss: `quantise` has rounded them already."""
    if dtype == "BF16":
        return (scales.view(np.uint32) >> 16).astype(np.uint16)
    return scales.astype(np.float16 if dtype == "F16" else np.float32)
