import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops.rope import RopeTable

_FREQUENCIES = 1.0 / 10_000.0 ** (torch.arange(0, 14, 2) / 14)


def _table() -> RopeTable:
    return RopeTable(_FREQUENCIES, torch.device("cpu"))


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_a_row_depends_on_its_position_only(sizes: list[int]) -> None:
    """However the table grew, bit for bit."""
    grown, at_once = _table(), _table()
    for size in sizes:
        assert len(grown.cos_sin(size)[0]) >= size
    longest = max(sizes)
    for ours, theirs in zip(grown.cos_sin(longest), at_once.cos_sin(longest), strict=True):
        assert torch.equal(ours[:longest], theirs[:longest])


def test_values_at_a_far_position() -> None:
    position = 131_071
    cos, sin = _table().cos_sin(position + 1)
    angles = (torch.tensor(float(position)) * _FREQUENCIES).double()
    torch.testing.assert_close(cos[position].double(), angles.cos(), atol=1e-7, rtol=0)
    torch.testing.assert_close(sin[position].double(), angles.sin(), atol=1e-7, rtol=0)


def test_grows_for_what_is_asked_and_not_for_the_whole_context() -> None:
    table = _table()
    assert len(table.cos_sin(1)[0]) <= 4096
    first = table.cos_sin(1)[0]
    assert table.cos_sin(1000)[0] is first
