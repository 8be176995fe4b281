"""Fill a model with the weights of a checkpoint. The only module of this package that imports torch.

Targets that accept a quantised format receive the weights as stored; other targets receive dequantised
values. One thread reads and several write. Besides the model itself, only a few chunks of rows are in memory
at a time.
"""

import hashlib
import importlib.metadata
import itertools
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm import tqdm

from octavo import weight_format
from octavo.checkpoint import Checkpoint, RowChunk, TensorInfo
from octavo.checkpoint.full_hash import full_hash
from octavo.checkpoint.packed_cache import PackedCache
from octavo.checkpoint.packed_file import PackedMemory
from octavo.errors import CheckpointError
from octavo.kernels.library import usable_cores
from octavo.weight_format import FORMATS, BadBlocks

if TYPE_CHECKING:
    from octavo.models.weights import WeightStorage, WeightTarget

MATRIX_ALIGNMENT = 4096

# Called with (bytes read, total bytes).
OnLoaded = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadedWeights:
    mapped_bytes: int = 0  # shared with other engines; the system counts them as available memory
    from_cache: bool = False


def load_weights(
    checkpoint: Checkpoint,
    targets: Mapping[str, "WeightTarget"],
    *,
    cache: PackedCache | None = None,
    progress: bool | None,
    on_loaded: OnLoaded = lambda done, total: None,
    threads: int | None = None,
) -> LoadedWeights:
    """Write every tensor of the checkpoint to the target of its name. Raises CheckpointError with all tensors
    that are missing, unexpected or have the wrong shape.

    With a cache, targets that have a storage are mapped from the cache; weights that are not cached yet are
    packed into it. `progress`: show a bar on stderr. `on_loaded` is called with the number of bytes read and
    the total. `threads` None: one thread per usable core.
    """
    _check_fit(checkpoint, targets)
    read = partial(_read, checkpoint, on_loaded=on_loaded, threads=threads or usable_cores())
    storages = _storages(targets)
    if cache is None or not storages:
        read(targets, progress=progress)
        return LoadedWeights()
    was_packed = False

    def pack(memory: PackedMemory) -> None:
        nonlocal was_packed
        _place(storages, memory)
        read(targets, progress=progress)
        was_packed = True

    num_bytes = list(_starts(storages))[-1]
    key = _key(checkpoint, cache, storages, lambda: on_loaded(0, 0))
    memory = cache.load(key, checkpoint.name, num_bytes, pack, lambda: on_loaded(0, 0))
    if memory is not None:
        _place(storages, memory)
    if not was_packed:
        unpacked = {
            name: target for name, target in targets.items() if memory is None or target.storage is None
        }
        read(unpacked, progress=progress if memory is None else False)
    return LoadedWeights(num_bytes if memory is not None else 0, memory is not None and not was_packed)


def _storages(targets: Mapping[str, "WeightTarget"]) -> "dict[WeightStorage, list[str]]":
    """Return the storages with the names of their tensors, in the order in which the model was built."""
    storages: dict[WeightStorage, list[str]] = {}
    for name, target in targets.items():
        if target.storage is not None:
            storages.setdefault(target.storage, []).append(name)
    return storages


def _starts(storages: "Mapping[WeightStorage, list[str]]") -> "itertools.accumulate[int]":
    """Yield the offset of each storage in the packed memory, and the end of the last one."""
    sizes = (-(-storage.num_bytes // MATRIX_ALIGNMENT) * MATRIX_ALIGNMENT for storage in storages)
    return itertools.accumulate(sizes, initial=0)


def _place(storages: "Mapping[WeightStorage, list[str]]", memory: PackedMemory) -> None:
    for storage, start in zip(storages, _starts(storages), strict=False):
        storage.place(memory.address + start, memory)


def _key(
    checkpoint: Checkpoint,
    cache: PackedCache,
    storages: "Mapping[WeightStorage, list[str]]",
    while_hashing: Callable[[], None],
) -> str:
    """Return a hash of everything that determines the packed bytes: the files, and how they are converted."""
    facts = {
        "weights": full_hash(checkpoint.store.files, cache.hashes, lambda done: while_hashing()),
        "config": checkpoint.config,
        "quantize": checkpoint.quantize,
        "layout": cache.layout_version,
        "matrices": [
            (storage.layout, [_source(checkpoint.tensors[name]) for name in names])
            for storage, names in storages.items()
        ],
        "code": _code_hash(),
        "gguf": importlib.metadata.version("gguf"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _code_hash() -> str:
    """Return a hash of the code that reads and places weights. When it changes, weights are packed again."""
    package = Path(weight_format.__file__).parent
    digest = hashlib.sha256(Path(weight_format.__file__).read_bytes())
    for part in ("checkpoint", "models", "ops"):
        for source in sorted((package / part).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _source(tensor: TensorInfo) -> tuple[str, tuple[int, ...], str]:
    return tensor.name, tensor.shape, tensor.source_dtype


def _read(
    checkpoint: Checkpoint,
    targets: Mapping[str, "WeightTarget"],
    *,
    progress: bool | None,
    on_loaded: OnLoaded,
    threads: int,
) -> None:
    tensors = [tensor for tensor in checkpoint.tensors.values() if tensor.name in targets]
    total = sum(tensor.nbytes for tensor in tensors)
    with tqdm(
        total=total,
        desc=f"Loading {checkpoint.name}",
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    ) as bar:
        done = 0
        for num_bytes in _write_tensors(checkpoint, targets, tensors, threads):
            bar.update(num_bytes)
            done += num_bytes
            on_loaded(done, total)


def _write_tensors(
    checkpoint: Checkpoint, targets: Mapping[str, "WeightTarget"], tensors: list[TensorInfo], threads: int
) -> Iterator[int]:
    """Write all chunks and yield the size of each in the file."""
    in_flight: deque[Future[int]] = deque()
    with _writers(threads) as pool:
        for tensor in tensors:
            target = targets[tensor.name]
            read = checkpoint.chunks if target.format is None else checkpoint.blocks
            for chunk in read(tensor.name):
                in_flight.append(pool.submit(_write, checkpoint, tensor, target, chunk))
                if len(in_flight) > 2 * threads:
                    yield in_flight.popleft().result()
        while in_flight:
            yield in_flight.popleft().result()


@contextmanager
def _writers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Start threads in which torch does not start threads of its own."""
    num_torch_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
            yield pool
    finally:
        torch.set_num_threads(num_torch_threads)  # new threads inherit the number that was set last


def _write(checkpoint: Checkpoint, tensor: TensorInfo, target: "WeightTarget", chunk: RowChunk) -> int:
    try:
        if chunk.dtype in FORMATS:
            target.write_blocks(chunk.start, torch.from_numpy(chunk.values))
        else:
            # The same error as `write_blocks` raises: no quantiser writes values that are not finite.
            if tensor.source_dtype in FORMATS and not np.isfinite(chunk.values).all():
                raise BadBlocks("a weight is not finite")
            target.write_rows(chunk.start, _as_torch(chunk))
    except BadBlocks as error:
        raise CheckpointError(
            f"{tensor.name} ({tensor.source_dtype}) of {checkpoint.name} is damaged in rows {chunk.start} to "
            f"{chunk.start + len(chunk.values) - 1}: {error}. Download the file again."
        ) from error
    return chunk.source_nbytes


def _as_torch(chunk: RowChunk) -> torch.Tensor:
    if chunk.dtype == "BF16":
        return torch.from_numpy(chunk.values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(chunk.values)


def _check_fit(checkpoint: Checkpoint, targets: Mapping[str, "WeightTarget"]) -> None:
    missing = sorted(set(targets) - set(checkpoint.tensors))
    extra = set(checkpoint.tensors) - set(targets)
    unexpected = sorted(name for name in extra if not _can_ignore(checkpoint, name))
    misshapen = [
        f"{name} {list(checkpoint.tensors[name].shape)} instead of {list(target.shape)}"
        for name, target in targets.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape != tuple(target.shape)
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of the wrong shape": misshapen}
    if any(problems.values()):
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names)
        raise CheckpointError(
            f"The weights of {checkpoint.name} do not match the model that its config describes."
            f" Tensors {listed}."
        )


def _can_ignore(checkpoint: Checkpoint, name: str) -> bool:
    """Return whether a tensor without a target can be ignored.

    A model without a target for lm_head ties it to the embedding; rope tables are computed; some GPTQ tools
    add a bias of zeros to every layer.
    """
    if name.endswith(".bias"):
        return not any(chunk.values.any() for chunk in checkpoint.chunks(name))
    return name == "lm_head.weight" or name.endswith(".rotary_emb.inv_freq")
