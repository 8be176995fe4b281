"""The figures of docs/reliability.md in short form. `python benchmarks/server_load.py` runs them in full."""

from collections.abc import Callable

import pytest

from load.figure import Start, table
from load.figures import FIGURES, Figure


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figure(figure: Figure, start: Start, record_property: Callable[[str, object], None]) -> None:
    rows = figure.short(start)
    for row in rows:
        missed = "" if row.is_met else ", NOT MET"
        record_property("load", f"{row.name}, {row.size}: {row.figure} (target: {row.target}{missed})")
    assert not any(row.is_red for row in rows), "\n" + table(rows)
