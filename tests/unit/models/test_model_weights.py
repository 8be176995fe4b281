import pytest
import torch

from octavo.models.weights import WeightSet
from octavo.ops import select_ops


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
