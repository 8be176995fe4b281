"""Checkpoints: open one, whatever its format, and read its config, its text assets and its weights.

Nothing here imports torch; `octavo.checkpoint.load` does, and fills a model with the weights.
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
from octavo.checkpoint.quantized import QuantisingStore, QuantizedStore, SchemeName, present_plainly
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
    """An opened checkpoint. Headers are read and checked; weights are read when asked for."""

    name: str
    path: Path
    revision: str | None  # the hub's commit
    format: Literal["safetensors", "gguf"]
    config: Mapping[str, Any]  # in the shape of config.json, for GGUF too
    generation_config: Mapping[str, Any]
    store: TensorStore = field(repr=False)
    read_text: Callable[[], TextAssets] = field(repr=False)
    quantize: SchemeName | None = None  # the scheme by which `store` quantises what it reads

    @cached_property
    def text(self) -> TextAssets:
        """Made on first use: an engine process has no need of it."""
        return self.read_text()

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """By Hugging Face name, for GGUF too."""
        return self.store.tensors

    @property
    def num_parameters(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors.values())

    def chunks(self, name: str) -> Iterator[RowChunk]:
        """The rows of a tensor in order, about a million elements at a time."""
        return self.store.chunks(name)

    @cached_property
    def formats(self) -> Mapping[str, str]:
        """By name, the quantised form of each matrix that `blocks` can give."""
        return {
            name: tensor.source_dtype
            for name, tensor in self.tensors.items()
            if tensor.source_dtype in FORMATS and len(tensor.shape) == 2
        }

    def blocks(self, name: str) -> Iterator[RowChunk]:
        """The rows of a tensor in `formats`, in order, as blocks of its form."""
        return self.store.blocks(name)


def open_checkpoint(
    model: str | None = None,
    *,
    checkpoint_path: str | Path | None = None,
    revision: str | None = None,
    tokenizer: str | Path | None = None,
    quantize: SchemeName | None = None,
) -> Checkpoint:
    """`model` is a hub id or a path. `tokenizer` replaces the checkpoint's own: a directory, its
    tokenizer.json, a GGUF file or a hub id. `quantize`: how to quantise the weights while they are read."""
    location = locate(model, checkpoint_path=checkpoint_path, revision=revision)
    weights = _weights_path(location.path)
    opened = _open_directory(location) if weights.is_dir() else _open_gguf(location, weights)
    if quantize is not None:
        opened = _quantising(opened, quantize)
    if tokenizer is None:
        return opened

    def text_of_the_other() -> TextAssets:
        return _with_ends_of(opened.generation_config, _read_text_apart(tokenizer))

    return replace(opened, read_text=text_of_the_other)


def _weights_path(path: Path) -> Path:
    """The directory of a safetensors checkpoint, or the GGUF file."""
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        if path.suffix in PICKLE_SUFFIXES:
            raise CheckpointError(
                f"{path.name} is a pickle, and a pickle can run any code when read. {_HOW_TO_CONVERT}"
            )
        raise CheckpointError(
            f"{path} is not a checkpoint: give a .gguf file, or a directory with config.json and safetensors."
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
        raise CheckpointError(f"{path} holds several GGUF files: {names}. Give the path of one of them.")
    if any(file.suffix in PICKLE_SUFFIXES for file in files):
        raise CheckpointError(
            f"{path} holds pickled weights only, and a pickle can run any code when read. {_HOW_TO_CONVERT}"
        )
    raise CheckpointError(f"{path} holds neither safetensors nor GGUF weights.")


_HOW_TO_CONVERT = "Use a safetensors or GGUF version of the model, or convert it where you trust it."


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
        store=present_plainly(config, open_safetensors(directory)),
        read_text=lambda: text_assets_from_directory(directory),
    )


def _quantising(checkpoint: Checkpoint, scheme: SchemeName) -> Checkpoint:
    if isinstance(checkpoint.store, QuantizedStore):
        raise ConfigError(
            f"quantize {scheme}: {checkpoint.name} is quantised already; leave the option out, or take a"
            " checkpoint that is not"
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


def _read_text_apart(tokenizer: str | Path) -> TextAssets:
    path = locate(str(tokenizer), patterns=TEXT_PATTERNS).path
    if path.suffix == ".gguf":
        return text_assets_from_gguf(read_gguf(path).metadata)
    if path.name == "tokenizer.json":
        return text_assets_from_directory(path.parent)
    if path.is_dir():
        return text_assets_from_directory(path)
    raise CheckpointError(
        f"{path} is not a tokenizer: give a directory, its tokenizer.json, or a .gguf file."
    )


def _with_ends_of(generation_config: Mapping[str, Any], text: TextAssets) -> TextAssets:
    """The model's own end-of-turn ids come first: a tokenizer given apart may not know them."""
    ends = generation_config.get("eos_token_id")
    own = [end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int]
    return replace(text, eos_ids=tuple(dict.fromkeys((*own, *text.eos_ids))))
