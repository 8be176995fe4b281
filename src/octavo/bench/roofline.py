"""The roofline as a picture: operations per byte against operations per second, both on logarithmic axes.

Left of the ridge a kernel can be as fast as the memory feeds it (the slope); right of it, as fast as the processor
multiplies (the ceiling). The distance to the roof is what is left to win.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.measure import Limits
from octavo.errors import ConfigError

FORMATS = (".svg", ".png")
COLOURS = ("#3b6fb6", "#d1712b", "#3d9a5f", "#a8475f", "#7a5ea8", "#8a6d3b", "#2f9aa0", "#c2528b", "#6b7280", "#9aa02f")
MARKERS = "os^Dvp<>hX"
INK, FAINT = "#22272e", "#d5d9df"


@dataclass(frozen=True)
class Point:
    """Points of one series are joined, and each has its own short label."""

    series: str
    label: str
    intensity: float  # operations per byte
    gigaflops: float


def check_plot(path: Path) -> None:
    """Before anything is measured: a picture can be drawn and will have a known format."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot {path}: the name must end with {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'octavo[bench]'") from error


def plot_roofline(points: Sequence[Point], limits: Limits, path: Path, title: str) -> None:
    """`limits.peak` may be 0: the roof is then the slope alone."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    settings = {"font.family": "DejaVu Sans", "font.size": 9, "svg.fonttype": "none", "text.color": INK}
    with mpl.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(10.5, 6.2), layout="constrained")
        _draw_roof(axes, points, limits)
        by_series = {point.series: [p for p in points if p.series == point.series] for point in points}
        for index, (series, members) in enumerate(by_series.items()):
            _draw_series(axes, series, members, index, is_crowded=len(points) > 40)
        _dress(axes, title)
        figure.savefig(path, dpi=160)
        pyplot.close(figure)


def _draw_roof(axes: Any, points: Sequence[Point], limits: Limits) -> None:
    slope, ceiling = limits.bandwidth / 1e9, limits.peak / 1e9  # Gflop/s per (operation per byte), and Gflop/s
    left = min(point.intensity for point in points) / 1.8
    right = max(point.intensity for point in points) * 2.2
    ridge = ceiling / slope if ceiling else right
    right = max(right, ridge * 1.8) if ceiling else right
    xs = [left, min(ridge, right), right]
    ys = [left * slope, min(ridge, right) * slope, ceiling or right * slope]
    axes.fill_between(xs, ys, [ys[-1] * 2.2] * 3, color="#f1f3f6", zorder=0, linewidth=0)
    axes.plot(xs, ys, color=INK, linewidth=1.8, zorder=2, solid_joinstyle="round")
    lowest = min(min(point.gigaflops for point in points), left * slope)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(lowest / 1.8, ys[-1] * 2.2))
    middle = math.sqrt(left * min(ridge, right))
    axes.text(
        middle,
        middle * slope * 1.12,
        f"memory: {slope:.1f} GB/s",
        rotation=math.degrees(math.atan2(1, 1)),
        rotation_mode="anchor",
        transform_rotates_text=True,
        ha="center",
        va="bottom",
        fontweight="bold",
    )
    if ceiling:
        axes.text(
            right / 1.1, ceiling * 1.1, f"AMX: {ceiling / 1e3:.2f} Tflop/s", ha="right", va="bottom", fontweight="bold"
        )
        axes.plot([ridge, ridge], [lowest / 1.8, ceiling], color=FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def _draw_series(axes: Any, series: str, points: Sequence[Point], index: int, *, is_crowded: bool) -> None:
    colour = COLOURS[index % len(COLOURS)]
    axes.plot(
        [point.intensity for point in points],
        [point.gigaflops for point in points],
        marker=MARKERS[index % len(MARKERS)],
        markersize=5 if is_crowded else 7.5,
        markeredgecolor="white",
        markeredgewidth=0.7,
        linewidth=1,
        alpha=0.9,
        color=colour,
        label=series,
        zorder=3,
    )
    for point in points:
        axes.annotate(
            point.label,
            (point.intensity, point.gigaflops),
            xytext=(5, -3),
            textcoords="offset points",
            ha="left",
            va="top",
            fontsize=6 if is_crowded else 8.5,
            color=colour,
        )


def _dress(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=12)
    axes.set_xlabel("operations per byte from memory")
    axes.set_ylabel("Gflop/s")
    axes.grid(visible=True, which="major", color=FAINT, linewidth=0.6, zorder=0)
    axes.tick_params(colors=INK, which="both", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
    axes.legend(loc="upper left", frameon=False, fontsize=8, labelcolor=INK)
