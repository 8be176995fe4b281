"""The figures of docs/reliability.md in their short form. In full: `python benchmarks/server_load.py`."""

from collections.abc import Callable

import pytest

from load.figure import Start, table
from load.figures import FIGURES, Figure

CASES = [
    pytest.param(figure, id=figure.name, marks=[pytest.mark.timing] if figure.is_timed else [])
    for figure in FIGURES
]


@pytest.mark.parametrize("figure", CASES)
def test_figure(figure: Figure, start: Start, record_property: Callable[[str, object], None]) -> None:
    rows = figure.short(start)
    for row in rows:
        record_property("load", f"{row.name}, {row.size}: {row.figure} (target: {row.target})")
    assert all(row.is_met for row in rows), "\n" + table(rows)
