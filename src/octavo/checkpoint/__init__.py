"""Open a checkpoint of any supported format and read its config, text assets and weights.

This module does not import torch. `octavo.checkpoint.load` does; it fills a model with the weights.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

from octavo.checkpoint.gguf_file import read_gguf
from octavo.checkpoint.gguf_names import present_as_huggingface
from octavo.checkpoint.locate import PICKLE_SUFFIXES, TEXT_PATTERNS, Location, locate
from octavo.checkpoint.quantized import QuantisingStore, QuantizedStore, SchemeName, open_plain_store
from octavo.checkpoint.safetensors_file import open_safetensors
from octavo.checkpoint.tensors import RowChunk, TensorInfo, TensorStore
from octavo.errors import CheckpointError, ConfigError
from octavo.json_file import read_json_object
from octavo.text.assets import TextAssets
from octavo.text.gguf_vocab import text_assets_from_gguf
from octavo.text.huggingface import text_assets_from_directory
from octavo.weight_format import FORMATS

__all__ = ["Checkpoint", "RowChunk", "TensorInfo", "open_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Its headers have been read and checked; weights are read on demand."""

    name: str
    path: Path
    revision: str | None  # commit on the hub
    format: Literal["safetensors", "gguf"]
    config: Mapping[str, Any]  # in the shape of config.json, for GGUF too
    generation_config: Mapping[str, Any]
    store: TensorStore = field(repr=False)
    read_text: Callable[[], TextAssets] = field(repr=False)
    quantize: SchemeName | None = None  # scheme with which `store` quantises weights while it reads them

    @cached_property
    def text(self) -> TextAssets:
        """Tokenizer and chat templates, read on first use: an engine process does not need them."""
        return self.read_text()

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Tensors by their Hugging Face name, for GGUF too."""
        return self.store.tensors

    @property
    def num_parameters(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors.values())

    def chunks(self, name: str) -> Iterator[RowChunk]:
        """Yield the rows of a tensor in order, about a million elements at a time."""
        return self.store.chunks(name)

    @cached_property
    def formats(self) -> Mapping[str, str]:
        """Names of the matrices that `blocks` can read, with their quantised formats."""
        return {
            name: tensor.source_dtype
            for name, tensor in self.tensors.items()
            if tensor.source_dtype in FORMATS and len(tensor.shape) == 2
        }

    def blocks(self, name: str) -> Iterator[RowChunk]:
        """Yield the rows of a tensor in `formats`, in order, as weight blocks of its format."""
        return self.store.blocks(name)


def open_checkpoint(
    model: str | None = None,
    *,
    checkpoint_path: str | Path | None = None,
    revision: str | None = None,
    tokenizer: str | Path | None = None,
    quantize: SchemeName | None = None,
) -> Checkpoint:
    """Open the checkpoint `model` (a hub id or a path) or `checkpoint_path`.

    `tokenizer` replaces the checkpoint's own: a directory, its tokenizer.json, a GGUF file or a hub id.
    `quantize`: the scheme with which to quantise the weights while they are read.
    """
    location = locate(model, checkpoint_path=checkpoint_path, revision=revision)
    weights = _weights_path(location.path)
    opened = _open_directory(location) if weights.is_dir() else _open_gguf(location, weights)
    if quantize is not None:
        opened = _quantising(opened, quantize)
    if tokenizer is None:
        return opened

    def read_other_text() -> TextAssets:
        return _with_eos_ids(opened.generation_config, _read_text_from(tokenizer))

    return replace(opened, read_text=read_other_text)


def _weights_path(path: Path) -> Path:
    """Return the directory of a safetensors checkpoint, or the path of the GGUF file."""
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        if path.suffix in PICKLE_SUFFIXES:
            raise CheckpointError(
                f"{path.name} is a pickle, and loading a pickle can run any code. {_HOW_TO_CONVERT}"
            )
        raise CheckpointError(
            f"{path} is not a checkpoint. Pass a .gguf file, or a directory with config.json and safetensors."
        )
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise CheckpointError(f"Cannot list {path}: {error.strerror}. Check the path.") from error
    if any(file.suffix == ".safetensors" for file in files):
        return path
    ggufs = [file for file in files if file.suffix == ".gguf"]
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(gguf.name for gguf in ggufs)
        raise CheckpointError(f"{path} contains several GGUF files: {names}. Pass the path of one of them.")
    if any(file.suffix in PICKLE_SUFFIXES for file in files):
        raise CheckpointError(
            f"{path} contains only pickled weights, and loading a pickle can run any code. {_HOW_TO_CONVERT}"
        )
    raise CheckpointError(f"{path} contains neither safetensors nor GGUF weights.")


_HOW_TO_CONVERT = (
    "Use a safetensors or GGUF version of the model, or convert it yourself if you trust its source."
)


def _open_directory(location: Location) -> Checkpoint:
    directory = location.path
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"{directory} has no config.json. Download the whole repository.")
    generation = directory / "generation_config.json"
    config = read_json_object(directory / "config.json")
    return Checkpoint(
        name=location.name,
        path=directory,
        revision=location.revision,
        format="safetensors",
        config=config,
        generation_config=read_json_object(generation) if generation.is_file() else {},
        store=open_plain_store(config, open_safetensors(directory)),
        read_text=lambda: text_assets_from_directory(directory),
    )


def _quantising(checkpoint: Checkpoint, scheme: SchemeName) -> Checkpoint:
    if isinstance(checkpoint.store, QuantizedStore):
        raise ConfigError(
            f"quantize {scheme}: {checkpoint.name} is already quantised; omit the option, or use an"
            " unquantised checkpoint"
        )
    return replace(checkpoint, store=QuantisingStore(checkpoint.store, scheme), quantize=scheme)


def _open_gguf(location: Location, path: Path) -> Checkpoint:
    file = read_gguf(path)
    config, store = present_as_huggingface(file)
    generation_config = {
        key: config[key]
        for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        if config[key] is not None
    }
    return Checkpoint(
        name=location.name,
        path=path,
        revision=location.revision,
        format="gguf",
        config=config,
        generation_config=generation_config,
        store=store,
        read_text=lambda: text_assets_from_gguf(file.metadata),
    )


def _read_text_from(tokenizer: str | Path) -> TextAssets:
    path = locate(str(tokenizer), patterns=TEXT_PATTERNS).path
    if path.suffix == ".gguf":
        return text_assets_from_gguf(read_gguf(path).metadata)
    if path.name == "tokenizer.json":
        return text_assets_from_directory(path.parent)
    if path.is_dir():
        return text_assets_from_directory(path)
    raise CheckpointError(
        f"{path} is not a tokenizer. Pass a directory, its tokenizer.json, or a .gguf file."
    )


def _with_eos_ids(generation_config: Mapping[str, Any], text: TextAssets) -> TextAssets:
    """Put the model's own end-of-turn ids first: a separate tokenizer may not define them."""
    given = generation_config.get("eos_token_id")
    eos_ids = [token for token in (given if isinstance(given, list) else [given]) if type(token) is int]
    return replace(text, eos_ids=tuple(dict.fromkeys((*eos_ids, *text.eos_ids))))
