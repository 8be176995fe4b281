from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from octavo.models.weights import WeightSet, bytes_by_format
from octavo.ops import Linear, LinearPart, select_ops
from octavo.ops.torch_ops import TorchOps


def test_fused_matrices_are_filled_part_by_part_in_any_order() -> None:
    weights = WeightSet(select_ops("cpu", torch.float32), {})
    fused = weights.linear({"a": 3, "b": 2}, 4, bias=True)
    matrix = torch.randn(5, 4)
    bias = torch.randn(5)
    assert {name: target.shape for name, target in weights.targets.items()} == {
        "a.weight": (3, 4),
        "a.bias": (3,),
        "b.weight": (2, 4),
        "b.bias": (2,),
    }
    weights.targets["b.weight"].write_rows(0, matrix[3:])
    weights.targets["a.weight"].write_rows(2, matrix[2:3])
    weights.targets["a.weight"].write_rows(0, matrix[:2])
    weights.targets["a.bias"].write_rows(0, bias[:3])
    weights.targets["b.bias"].write_rows(0, bias[3:])
    x = torch.randn(2, 4)
    torch.testing.assert_close(weights.ops.linear(x, fused), x @ matrix.T + bias)


@pytest.mark.parametrize(("start", "shape"), [(-1, (1, 4)), (2, (2, 4)), (0, (4, 4)), (0, (1, 3))])
def test_rows_never_spill_into_the_next_part(start: int, shape: tuple[int, ...]) -> None:
    weights = WeightSet(select_ops("cpu", torch.float32), {})
    weights.linear({"before": 2, "a": 3, "after": 2}, 4)
    with pytest.raises(ValueError, match="fit"):
        weights.targets["a.weight"].write_rows(start, torch.ones(shape))


class _KeepingOps(TorchOps):
    """Records the formats of parts."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.forms: list[str | None] = []

    def new_linear(self, parts: Sequence[LinearPart], in_features: int, *, bias: bool = False) -> Linear:
        self.forms += [part.format for part in parts]
        return super().new_linear(parts, in_features, bias=bias)


def test_every_part_is_requested_in_the_format_of_its_tensor() -> None:
    ops = _KeepingOps()
    formats = {"a.weight": "Q4_K", "c.weight": "Q6_K", "table.weight": "Q8_0", "d.bias": "Q8_0"}
    weights = WeightSet(ops, formats)
    weights.linear({"a": 3, "b": 2, "c": 1}, 256, bias=True)
    weights.linear({"d": 3}, 256, bias=True)
    weights.embedding("table", 5, 256)
    assert ops.forms == ["Q4_K", None, "Q6_K", None, "Q8_0"]


@dataclass(frozen=True)
class _Target:
    shape: tuple[int, ...]
    format: str | None = None
    storage: None = None

    def write_rows(self, start: int, rows: torch.Tensor) -> None: ...

    def write_blocks(self, start: int, blocks: torch.Tensor) -> None: ...


def test_bytes_are_counted_in_the_stored_format() -> None:
    kept = {"a": _Target((4, 512), "Q4_K"), "c": _Target((1, 256), "Q4_K")}
    targets = kept | {"b": _Target((4, 512)), "d": _Target((9,))}
    assert bytes_by_format(targets, torch.bfloat16) == {"bfloat16": 4096, "Q4_K": 9 * 144, "float32": 36}
    assert bytes_by_format(targets, torch.float32) == {"float32": 8192 + 36, "Q4_K": 9 * 144}
