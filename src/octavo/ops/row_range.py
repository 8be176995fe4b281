"""A range of rows of a weight target, as a target itself."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from octavo.ops.interface import WeightStorage, WeightTarget


@dataclass(frozen=True)
class RowRange:
    """One of the matrices or biases that are stacked in a larger one."""

    whole: WeightTarget
    first_row: int
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_rows, *self.whole.shape[1:])

    @property
    def storage(self) -> WeightStorage | None:
        return self.whole.storage

    @property
    def format(self) -> str | None:
        return self.whole.format

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        self._check_fit(start, len(rows))
        self.whole.write_rows(self.first_row + start, rows)

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None:
        self._check_fit(start, len(blocks))
        self.whole.write_blocks(self.first_row + start, blocks)

    def _check_fit(self, start: int, num_rows: int) -> None:
        if start < 0 or start + num_rows > self.num_rows:
            raise ValueError(
                f"rows {start} to {start + num_rows} do not fit into a weight of {self.num_rows} rows"
            )


def cut_rows(whole: WeightTarget, sizes: Iterable[int]) -> tuple[RowRange, ...]:
    """Return consecutive ranges of these sizes."""
    ranges: list[RowRange] = []
    first_row = 0
    for size in sizes:
        ranges.append(RowRange(whole, first_row, size))
        first_row += size
    return tuple(ranges)
