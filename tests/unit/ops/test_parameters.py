import pytest
import torch

from octavo.ops.parameters import TensorTarget


def test_rows_are_cast_and_written_to_their_place() -> None:
    target = TensorTarget(torch.zeros(5, 2, dtype=torch.bfloat16))
    rows = torch.arange(4, dtype=torch.float64).view(2, 2)
    target.write_rows(3, rows)
    assert target.shape == (5, 2)
    assert torch.equal(target.tensor[3:], rows.bfloat16())
    assert not target.tensor[:3].any()


def test_an_offset_is_added_in_the_targets_precision() -> None:
    """2**-10 is lost when added to 1 in bfloat16, and must not be lost in a float32 gain."""
    target = TensorTarget(torch.zeros(1), offset=1.0)
    target.write_rows(0, torch.tensor([2.0**-10], dtype=torch.bfloat16))
    assert target.tensor.item() == 1 + 2.0**-10


@pytest.mark.parametrize(("start", "shape"), [(-1, (1, 2)), (4, (2, 2)), (0, (6, 2)), (0, (1, 1)), (0, (1,))])
def test_rows_that_do_not_fit_are_rejected(start: int, shape: tuple[int, ...]) -> None:
    target = TensorTarget(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="does not fit"):
        target.write_rows(start, torch.ones(shape))
    assert not target.tensor.any()
