from hypothesis import given
from hypothesis import strategies as st

from octavo.observe.histogram import LONG, SHORT, Histogram


@given(st.sampled_from([SHORT, LONG, (1.0,)]), st.lists(st.floats(0, 1e4)))
def test_bucket_edges_are_inclusive(edges: tuple[float, ...], values: list[float]) -> None:
    histogram = Histogram(edges)
    for value in (*values, *edges):
        histogram.observe(value)
    counts = dict(histogram.cumulative())
    assert list(counts) == [*edges, float("inf")]
    for edge, count in counts.items():
        assert count == sum(value <= edge for value in (*values, *edges))
    assert histogram.count == len(values) + len(edges)
