"""The parameters of a model and the checkpoint tensors that fill them."""

from collections import Counter
from collections.abc import Mapping
from math import prod

import torch

from octavo.ops import Linear, LinearPart, Norm, Ops, WeightStorage, WeightTarget
from octavo.ops.row_range import cut_rows
from octavo.weight_format import FORMATS

__all__ = ["WeightSet", "WeightStorage", "WeightTarget", "bytes_by_format"]


class WeightSet:
    """Creates a model's parameters and records the name of the checkpoint tensor for each."""

    def __init__(self, ops: Ops, formats: Mapping[str, str]) -> None:
        """`formats`: the quantised formats of the checkpoint's tensors, by name."""
        self.ops = ops
        self.formats = formats
        self.targets: dict[str, WeightTarget] = {}

    def linear(self, parts: Mapping[str, int], in_features: int, *, bias: bool = False) -> Linear:
        """Return one matrix in which the named ones are stacked in order. `parts`: rows of each, by name."""
        stacked = [LinearPart(num_rows, self._format(name)) for name, num_rows in parts.items()]
        linear = self.ops.new_linear(stacked, in_features, bias=bias)
        for name, target in zip(parts, linear.weights, strict=True):
            self._add(f"{name}.weight", target)
        if linear.bias is not None:
            for name, target in zip(parts, cut_rows(linear.bias, parts.values()), strict=True):
                self._add(f"{name}.bias", target)
        return linear

    def embedding(self, name: str, num_tokens: int, width: int) -> Linear:
        table = self.ops.new_embedding(num_tokens, width, self._format(name))
        self._add(f"{name}.weight", table.weights[0])
        return table

    def _format(self, name: str) -> str | None:
        return self.formats.get(f"{name}.weight")

    def norm(self, name: str, size: int, eps: float, *, offset: float = 0.0) -> Norm:
        norm = self.ops.new_norm(size, eps, offset=offset)
        self._add(f"{name}.weight", norm.weight)
        return norm

    def _add(self, name: str, target: WeightTarget) -> None:
        assert name not in self.targets, name
        self.targets[name] = target


def bytes_by_format(targets: Mapping[str, WeightTarget], dtype: torch.dtype) -> dict[str, int]:
    """Return the size of the weights by quantised format or dtype, largest first. Vectors are float32."""
    found = Counter[str]()
    for target in targets.values():
        if target.format is not None:
            found[target.format] += target.shape[0] * FORMATS[target.format].row_bytes(target.shape[1])
        else:
            kind = dtype if len(target.shape) > 1 else torch.float32
            found[str(kind).removeprefix("torch.")] += prod(target.shape) * kind.itemsize
    return dict(found.most_common())
