"""Result rows are contiguous, and neighbouring rows do not map to the same cache sets."""

import pytest
import torch

from octavo.kernels.spread import new_rows


@pytest.mark.parametrize("shape", [(3, 1), (3, 32), (3, 33), (3, 3072), (3, 9, 64), (0, 64), (1, 96)])
def test_rows_are_an_odd_number_of_cache_lines_apart(shape: tuple[int, ...]) -> None:
    rows = new_rows(shape, torch.bfloat16)
    assert rows.shape == shape
    assert rows.flatten(1).data_ptr() == rows.data_ptr()  # a view
    if shape[0] > 1:
        num_lines, rest = divmod(rows.stride(0) * rows.element_size(), 64)
        assert (num_lines % 2, rest) == (1, 0)


def test_logits_have_no_gaps() -> None:
    assert new_rows((3, 64), torch.float32).is_contiguous()
