"""Stacked matrices: parts share a packed matrix where possible, which never changes the result."""

import pytest
import torch

from octavo.kernels.library import find_library
from octavo.ops import Batch, BatchSequence, Linear, LinearPart, NativeOps, select_ops
from octavo.ops.taped_forward import TapedForward

pytestmark = pytest.mark.skipif(find_library() is None, reason="no native library was built")


def native(dtype: torch.dtype = torch.bfloat16, *, keeps_formats: bool = True) -> NativeOps:
    ops = select_ops("cpu", dtype, kernels="auto", threads=2, keeps_formats=keeps_formats)
    assert isinstance(ops, NativeOps)
    return ops


def filled(ops: NativeOps, sizes: list[int], weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    linear = ops.new_linear([LinearPart(size) for size in sizes], weight.shape[1], bias=bias is not None)
    for target, rows in zip(linear.weights, weight.split(sizes), strict=True):
        target.write_rows(0, rows)
    if linear.bias is not None and bias is not None:
        linear.bias.write_rows(0, bias)
    return linear


def sizes_of(linear: Linear) -> list[int]:
    return [matrix.n for matrix in linear.matrices]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("parts", "packed"),
    [([64, 32, 32], [128]), ([64, 40, 24], [104, 24]), ([40, 24, 32], [40, 24, 32]), ([7], [7])],
)
def test_parts_share_a_matrix_unless_they_would_share_a_group_of_rows(
    dtype: torch.dtype, parts: list[int], packed: list[int]
) -> None:
    ops = native(dtype)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(sum(parts), 96, generator=generator).to(dtype)
    bias = torch.randn(sum(parts), generator=generator)
    x = torch.randn(19, 96, generator=generator).to(dtype)
    linear, whole = filled(ops, parts, weight, bias), filled(ops, [sum(parts)], weight, bias)
    assert sizes_of(linear) == packed
    assert sizes_of(whole) == [sum(parts)]
    assert torch.equal(ops.linear(x, linear), ops.linear(x, whole))
    assert torch.equal(ops.logits(x, linear), ops.logits(x, whole))


def test_a_tape_replays_products_that_share_a_result() -> None:
    """The second product writes to the register of the first, at a column offset."""
    ops = native()
    weight = torch.randn(96, 96, generator=torch.Generator().manual_seed(2)).bfloat16()
    stacked, square = filled(ops, [40, 24, 32], weight, None), filled(ops, [96], weight, None)
    table = ops.new_embedding(50, 96)
    table.weights[0].write_rows(0, torch.randn(50, 96, generator=torch.Generator().manual_seed(3)))

    def forward(token_ids: torch.Tensor) -> torch.Tensor:
        x = ops.embedding(table, token_ids)
        for _ in range(3):
            x = ops.add(x, ops.linear(ops.linear(x, stacked), square))
        return ops.linear(x, stacked)

    taped = TapedForward(ops.pool, lambda batch: forward(batch.token_ids), block_size=32, max_positions=64)
    for num_rows in (1, 2, 37):
        token_ids = torch.randint(50, (num_rows,), generator=torch.Generator().manual_seed(num_rows))
        rows = torch.arange(num_rows)
        sequence = BatchSequence(0, num_rows, num_rows, torch.arange(2))
        batch = Batch.of(token_ids, rows, rows, (sequence,), 32)
        assert torch.equal(taped(batch), forward(token_ids))


def test_formats_without_kernels_and_other_dtypes_are_stored_as_values() -> None:
    part = LinearPart(32, "Q8_0")
    for ops in (native(torch.float32), native(keeps_formats=False), select_ops("cpu", torch.bfloat16)):
        assert [target.format for target in ops.new_linear([part], 64).weights] == [None]
        assert ops.new_embedding(32, 64, "Q8_0").weights[0].format is None
    assert native().new_linear([LinearPart(32, "Q4_K")], 576).weights[0].format is None  # 576 = 2.25 x 256
