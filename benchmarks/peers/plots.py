"""Charts for the generated pages. Equal results give equal bytes: a chart changes only with its data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.plan import PeerCase
from benchmarks.peers.results import Results

COLOURS = ("#2a6fdb", "#e07b39", "#5b9a68", "#9b6bb3", "#8c8c8c")  # Octavo first


def plot_figures(results: Results, chosen: Sequence[PeerCase], title: str, path: Path) -> None:
    """Draw the bars of each case as fractions of its best: figures of cases differ by a factor of 100."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = [engine.name for engine in results.engines_of(chosen)]
    places = [engine.name for engine in results.engines]  # an engine has the same colour in all charts
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(places)}
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.5 * len(chosen) + 1.5), 3.6))
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        for column, case in enumerate(chosen):
            value = results.median(name, case, case.figure)
            if value is not None:
                best = max(results.median(each, case, case.figure) or 0.0 for each in names)
                x = column - 0.4 + width * (place + 0.5)
                axes.bar(x, value / best, width, color=colours[name])
                axes.text(x, value / best + 0.015, _short(value), ha="center", va="bottom", fontsize=7)
    _style_axes(axes, chosen, title)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colours[name]) for name in names]
    axes.legend(
        handles,
        names,
        frameon=False,
        fontsize=8,
        ncols=len(names),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
    )
    save(figure, path)
    pyplot.close(figure)


def save(figure: Any, path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "octavo", "svg.fonttype": "path"}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None}, facecolor="white")


def _style_axes(axes: Any, chosen: Sequence[PeerCase], title: str) -> None:
    axes.set_xticks(range(len(chosen)), [f"{case.title}\n{case.figure_name}" for case in chosen], fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(0, 1.12)
    axes.set_title(title, fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
