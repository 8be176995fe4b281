"""Parameters stored in plain tensors."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorTarget:
    """A tensor that a checkpoint tensor is written into. `offset` is added to the written values."""

    tensor: torch.Tensor
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def storage(self) -> None:
        return None

    @property
    def format(self) -> None:
        return None

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        raise ValueError("a plain tensor accepts values, not weight blocks")

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        check_rows_fit(self.shape, start, rows)
        place = self.tensor[start : start + len(rows)]
        place.copy_(rows)
        if self.offset:
            place.add_(self.offset)


@dataclass(frozen=True)
class Norm:
    """An RMS norm. The gain is float32 in every model and includes the family's offset."""

    gain: torch.Tensor
    eps: float
    offset: float

    @property
    def weight(self) -> TensorTarget:
        return TensorTarget(self.gain, self.offset)


def check_rows_fit(shape: tuple[int, ...], start: int, rows: torch.Tensor) -> None:
    if tuple(rows.shape[1:]) != shape[1:] or start < 0 or start + len(rows) > shape[0]:
        raise ValueError(f"{tuple(rows.shape)} at row {start} does not fit into a weight of shape {shape}")
