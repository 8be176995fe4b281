from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from octavo.top.paint import duration, sparkline
from octavo.top.panels import cell_codes


@given(st.lists(st.tuples(st.integers(-3, 5), st.integers(1, 30))), st.integers(1, 40))
def test_a_cell_shows_the_most_common_block_state(runs: list[tuple[int, int]], per_cell: int) -> None:
    blocks = [code for code, count in runs for _ in range(count)]
    cells = cell_codes(tuple(runs), per_cell)
    assert len(cells) == -(-len(blocks) // per_cell)
    for number, shown in enumerate(cells):
        counts = Counter(blocks[number * per_cell : (number + 1) * per_cell])
        assert counts[shown] == max(counts.values())


def test_a_chart_is_scaled_to_the_largest_shown_value() -> None:
    bars = " .:#"
    assert sparkline([9, 0, 1, 2, 3], 4, bars) == " .:#"
    assert sparkline([None, 3.0], 4, bars) == "   #"
    assert sparkline([0.0, 0.0], 2, bars) == "  "
    assert sparkline([1.0], 0, bars) == ""


def test_durations_have_few_digits() -> None:
    shown = [duration(seconds) for seconds in (None, 0.00123, 0.0996, 0.9996, 12.34, 100, 3725)]
    assert shown == ["-", "1.2 ms", "100 ms", "1.0 s", "12.3 s", "0:01:40", "1:02:05"]
