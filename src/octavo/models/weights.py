"""Where the tensors of a checkpoint go."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo.ops import Linear, Norm, Ops, WeightTarget

__all__ = ["RowRange", "WeightSet", "WeightTarget"]


@dataclass(frozen=True)
class RowRange:
    """Some rows of a target, as a target: one of the matrices that are fused into a larger one."""

    whole: WeightTarget
    first_row: int
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_rows, *self.whole.shape[1:])

    def write_rows(self, start: int, rows: torch.Tensor) -> None:
        if start < 0 or start + len(rows) > self.num_rows:
            raise ValueError(
                f"rows {start} to {start + len(rows)} do not fit into a weight of {self.num_rows} rows"
            )
        self.whole.write_rows(self.first_row + start, rows)


class WeightSet:
    """Makes a model's parameters and notes the checkpoint's name for each."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.targets: dict[str, WeightTarget] = {}

    def linear(self, parts: Mapping[str, int], in_features: int, *, bias: bool = False) -> Linear:
        """One matrix for the named ones, stacked in their order; `parts` gives each one's rows."""
        linear = self.ops.new_linear(sum(parts.values()), in_features, bias=bias)
        first_row = 0
        for name, num_rows in parts.items():
            self._add(f"{name}.weight", RowRange(linear.weight, first_row, num_rows))
            if linear.bias is not None:
                self._add(f"{name}.bias", RowRange(linear.bias, first_row, num_rows))
            first_row += num_rows
        return linear

    def embedding(self, name: str, num_tokens: int, width: int) -> Linear:
        table = self.ops.new_embedding(num_tokens, width)
        self._add(f"{name}.weight", table.weight)
        return table

    def norm(self, name: str, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        norm = self.ops.new_norm(size, eps, offset=offset)
        self._add(f"{name}.weight", norm.weight)
        return norm

    def _add(self, name: str, target: WeightTarget) -> None:
        assert name not in self.targets, name
        self.targets[name] = target
