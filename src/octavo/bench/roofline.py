"""Roofline plot: operations per second against operations per byte, both axes logarithmic.

Left of the ridge, memory bandwidth limits a kernel (the slope); right of it, the processor's peak does (the
ceiling). The distance of a point to the roof is the possible improvement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.measure import MachineLimits
from octavo.errors import ConfigError

FORMATS = (".svg", ".png")
COLOURS = (
    *("#3b6fb6", "#d1712b", "#3d9a5f", "#a8475f", "#7a5ea8"),
    *("#8a6d3b", "#2f9aa0", "#c2528b", "#6b7280", "#9aa02f"),
)
MARKERS = "os^Dvph"  # 7 markers and 10 colours give 70 distinct pairs
INK, FAINT, OUT_OF_REACH = "#22272e", "#d5d9df", "#f1f3f6"
CROWDED = 30  # number of points above which markers are small and repeated nearby labels are omitted
NEAR = 22  # pixels: distance within which an equal label is omitted


@dataclass(frozen=True)
class Point:
    """A labelled point. Points of one series are connected."""

    series: str
    label: str
    intensity: float  # operations per byte
    gigaflops: float


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that the format is known and matplotlib is installed."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot {path}: the file name must end with {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("--plot requires matplotlib: pip install 'octavo[bench]'") from error


def plot_roofline(points: Sequence[Point], limits: MachineLimits, path: Path, title: str) -> None:
    """Draw the plot. If `limits.peak` is 0 (unknown), the roof is the slope only."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    settings = {"font.family": "DejaVu Sans", "font.size": 9, "svg.fonttype": "none", "text.color": INK}
    with mpl.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(11, 6.2), layout="constrained")
        roof = Roof.over(points, limits)
        _style_axes(axes, title)
        _draw_roof(axes, roof)
        _draw_points(axes, points)
        figure.draw_without_rendering()  # places the axes, so that positions in pixels are known
        _name_roof(axes, roof)
        _label_points(axes, points)
        figure.savefig(path, dpi=160)
        pyplot.close(figure)


@dataclass(frozen=True)
class Roof:
    """Corners of the plot and of the roof, in operations per byte and Gflop/s."""

    left: float
    right: float
    bottom: float
    ridge: float
    slope: float  # GB/s
    ceiling: float  # Gflop/s; 0: unknown

    @classmethod
    def over(cls, points: Sequence[Point], limits: MachineLimits) -> "Roof":
        slope, ceiling = limits.bandwidth / 1e9, limits.peak / 1e9
        left = min(point.intensity for point in points) / 1.8
        furthest = max(point.intensity for point in points) * 2.2
        ridge = ceiling / slope if ceiling else furthest
        bottom = min(left * slope, *(point.gigaflops for point in points)) / 1.6
        return cls(left, max(furthest, 2 * ridge) if ceiling else furthest, bottom, ridge, slope, ceiling)

    @property
    def top(self) -> float:
        return self.ceiling or self.right * self.slope


def _draw_roof(axes: Any, roof: Roof) -> None:
    xs = [roof.left, roof.ridge, roof.right]
    ys = [roof.left * roof.slope, roof.ridge * roof.slope, roof.top]
    axes.set(xlim=(roof.left, roof.right), ylim=(roof.bottom, roof.top * 2.2))
    axes.fill_between(xs, ys, [roof.top * 2.2] * 3, color=OUT_OF_REACH, zorder=0, linewidth=0)
    axes.plot(xs, ys, color=INK, linewidth=1.8, zorder=2, solid_joinstyle="round")
    if roof.ceiling:
        axes.plot(
            [roof.ridge] * 2, [roof.bottom, roof.ceiling], color=FAINT, linewidth=1, linestyle=(0, (4, 3))
        )


def _draw_points(axes: Any, points: Sequence[Point]) -> None:
    is_crowded = len(points) > CROWDED
    for index, (series, colour) in enumerate(_colours(points).items()):
        members = [point for point in points if point.series == series]
        axes.plot(
            [point.intensity for point in members],
            [point.gigaflops for point in members],
            marker=MARKERS[index % len(MARKERS)],
            markersize=5.5 if is_crowded else 7.5,
            markeredgecolor="white",
            markeredgewidth=0.7,
            linewidth=0.9,
            color=colour,
            label=series,
            zorder=3,
        )
    if len(_colours(points)) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8, borderaxespad=0)


def _name_roof(axes: Any, roof: Roof) -> None:
    """Label the slope, along the line, and the ceiling."""
    middle = roof.left * (roof.ridge / roof.left) ** 0.4
    (x0, y0), (x1, y1) = axes.transData.transform([(x, x * roof.slope) for x in (middle, 2 * middle)])
    axes.annotate(
        f"memory {roof.slope:.1f} GB/s",
        (middle, middle * roof.slope),
        xytext=(-3, 4),
        textcoords="offset points",
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
        ha="center",
        fontweight="bold",
    )
    if roof.ceiling:
        text = f"AMX {roof.ceiling / 1e3:.2f} Tflop/s"
        axes.text(roof.right / 1.1, roof.ceiling * 1.1, text, ha="right", fontweight="bold")


def _label_points(axes: Any, points: Sequence[Point]) -> None:
    is_crowded, colours = len(points) > CROWDED, _colours(points)
    placed: list[tuple[str, float, float]] = []
    (_, _), (right, _) = axes.transAxes.transform([(0, 0), (1, 1)])
    for point in sorted(points, key=lambda point: -point.gigaflops):
        x, y = axes.transData.transform((point.intensity, point.gigaflops))
        if is_crowded and any(
            text == point.label and math.hypot(x - other_x, y - other_y) < NEAR
            for text, other_x, other_y in placed
        ):
            continue
        placed.append((point.label, x, y))
        is_at_edge = x + 8 * len(point.label) > right
        axes.annotate(
            point.label,
            (point.intensity, point.gigaflops),
            xytext=(-6 if is_at_edge else 6, -3),
            textcoords="offset points",
            ha="right" if is_at_edge else "left",
            va="top",
            fontsize=6.5 if is_crowded else 8.5,
            color=colours[point.series],
        )


def _colours(points: Sequence[Point]) -> dict[str, str]:
    series = dict.fromkeys(point.series for point in points)
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(series)}


def _style_axes(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=12)
    axes.set_xlabel("operations per byte from memory")
    axes.set_ylabel("Gflop/s")
    axes.set(xscale="log", yscale="log")
    axes.grid(visible=True, which="major", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, which="both", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
