"""Fill a model with the weights of a checkpoint. The only module of this package that knows torch.

One chunk of rows is in memory at a time, beside the model itself.
"""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm import tqdm

from octavo.checkpoint import Checkpoint, RowChunk
from octavo.errors import CheckpointError

if TYPE_CHECKING:
    from octavo.models.weights import WeightTarget


def load_weights(
    checkpoint: Checkpoint,
    targets: Mapping[str, "WeightTarget"],
    *,
    progress: bool | None,
    on_loaded: Callable[[int, int], None] | None = None,
) -> None:
    """Write every tensor of the checkpoint to the target of its name, or say everything that does not fit.

    `progress`: a bar on stderr. `on_loaded` is told how many bytes are read, and how many there are.
    """
    _check_fit(checkpoint, targets)
    wanted = [tensor for tensor in checkpoint.tensors.values() if tensor.name in targets]
    total = sum(tensor.nbytes for tensor in wanted)
    with tqdm(
        total=total,
        desc=f"Loading {checkpoint.name}",
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        disable=None if progress is None else not progress,
    ) as bar:
        done = 0
        for tensor in wanted:
            target = targets[tensor.name]
            for chunk in checkpoint.chunks(tensor.name):
                target.write_rows(chunk.start, _as_torch(chunk))
                bar.update(chunk.source_nbytes)
                done += chunk.source_nbytes
                if on_loaded is not None:
                    on_loaded(done, total)


def _as_torch(chunk: RowChunk) -> torch.Tensor:
    if chunk.dtype == "BF16":
        return torch.from_numpy(chunk.values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(chunk.values)


def _check_fit(checkpoint: Checkpoint, targets: Mapping[str, "WeightTarget"]) -> None:
    missing = sorted(set(targets) - set(checkpoint.tensors))
    unexpected = sorted(name for name in set(checkpoint.tensors) - set(targets) if not _is_spare(name))
    misshapen = [
        f"{name} {list(checkpoint.tensors[name].shape)} instead of {list(target.shape)}"
        for name, target in targets.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape != tuple(target.shape)
    ]
    complaints = {"missing": missing, "unexpected": unexpected, "of the wrong shape": misshapen}
    if any(complaints.values()):
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in complaints.items() if names)
        raise CheckpointError(
            f"The weights of {checkpoint.name} do not fit the model its config describes. Tensors {listed}."
        )


def _is_spare(name: str) -> bool:
    """A model without a target for lm_head ties it to the embedding; rope tables are computed anew."""
    return name == "lm_head.weight" or name.endswith(".rotary_emb.inv_freq")
