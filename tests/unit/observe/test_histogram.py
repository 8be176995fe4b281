from hypothesis import given
from hypothesis import strategies as st

from octavo.observe.histogram import LONG, SHORT, Histogram


@given(st.sampled_from([SHORT, LONG, (1.0,)]), st.lists(st.floats(0, 1e4)))
def test_an_edge_counts_what_is_not_above_it(edges: tuple[float, ...], values: list[float]) -> None:
    histogram = Histogram(edges)
    for value in (*values, *edges):
        histogram.observe(value)
    told = dict(histogram.cumulative())
    assert list(told) == [*edges, float("inf")]
    for edge, count in told.items():
        assert count == sum(value <= edge for value in (*values, *edges))
    assert histogram.count == len(values) + len(edges)
