from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kernels.library import find_library
from octavo.ops import RopeTable, select_ops

_FREQUENCIES = 1.0 / 10_000.0 ** (torch.arange(0, 14, 2) / 14)

native = pytest.mark.skipif(find_library() is None, reason="no native library was built")
both_paths = pytest.mark.parametrize("kernels", ["torch", pytest.param("portable", marks=native)])


def _table(kernels: str) -> RopeTable:
    return select_ops("cpu", torch.float32, kernels=kernels, threads=1).new_rope(_FREQUENCIES)


@both_paths
@given(sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_a_row_depends_on_its_position_only(kernels: str, sizes: list[int]) -> None:
    """Rows are bit-identical however the table grew."""
    grown, at_once = _table(kernels), _table(kernels)
    for size in sizes:
        assert len(grown.cos_sin(size)[0]) >= size
    longest = max(sizes)
    for ours, theirs in zip(grown.cos_sin(longest), at_once.cos_sin(longest), strict=True):
        assert torch.equal(ours[:longest], theirs[:longest])


@both_paths
def test_values_at_a_large_position(kernels: str) -> None:
    position = 131_071
    cos, sin = _table(kernels).cos_sin(position + 1)
    angles = (torch.tensor(float(position)) * _FREQUENCIES).double()
    torch.testing.assert_close(cos[position].double(), angles.cos(), atol=1e-7, rtol=0)
    torch.testing.assert_close(sin[position].double(), angles.sin(), atol=1e-7, rtol=0)


@both_paths
def test_grows_to_the_requested_length_only(kernels: str) -> None:
    table = _table(kernels)
    assert len(table.cos_sin(1)[0]) <= 4096
    first = table.cos_sin(1)[0]
    assert table.cos_sin(1000)[0] is first


def test_requests_fixed_blocks_in_order() -> None:
    asked: list[tuple[int, int]] = []

    def angles(asked: list[tuple[int, int]], first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append((first, count))
        rows = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(1)
        return rows, -rows

    table = RopeTable(partial(angles, asked))
    for size in (1, 5000, 9000):
        cos, sin = table.cos_sin(size)
        assert torch.equal(cos.squeeze(1), torch.arange(len(cos)).float())
        assert torch.equal(sin, -cos)
    assert asked == [(0, 0), *((4096 * block, 4096) for block in range(4))]
