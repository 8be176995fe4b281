"""Inline SVG plots: lines, areas and bars in a frame with two axes.

Colours are CSS classes, which the page's style sheet defines for light and dark themes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    label: str
    is_logarithmic: bool = False
    unit: str = ""  # after every number

    def place(self, value: float) -> float:
        """Return the relative position of a value: 0 at the low end, 1 at the high end."""
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            return _octaves(self.low, self.high)
        step = nice_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """The axes and margins of a plot, in SVG units."""

    x: Axis
    y: Axis
    width: float = 520.0
    height: float = 250.0
    left: float = 58.0
    right: float = 18.0
    top: float = 14.0
    bottom: float = 42.0

    def at_x(self, value: float) -> float:
        return self.left + self.x.place(value) * (self.width - self.left - self.right)

    def at_y(self, value: float) -> float:
        return self.height - self.bottom - self.y.place(value) * (self.height - self.top - self.bottom)


def picture(frame: Frame, title: str, parts: Iterable[str], *, has_y_ticks: bool = True) -> str:
    """Return the SVG. Screen readers see one named image; the page's tables contain its numbers."""
    body = "".join((*_x_axis(frame), *(_y_axis(frame) if has_y_ticks else ()), *parts))
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {frame.width:g} {frame.height:g}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def line(frame: Frame, points: Points, kind: str) -> str:
    return f'<path class="line {kind}" d="{_path(frame, points)}"/>'


def area(frame: Frame, points: Points, kind: str) -> str:
    """Fill the area between a line and the x axis."""
    if not points:
        return ""
    floor = frame.height - frame.bottom
    first, last = frame.at_x(points[0][0]), frame.at_x(points[-1][0])
    path = f"{_path(frame, points)}L{last:.1f},{floor:.1f}L{first:.1f},{floor:.1f}Z"
    return f'<path class="area {kind}" d="{path}"/>'


def dots(frame: Frame, points: Iterable[tuple[float, float, str]], kind: str) -> str:
    """Draw points, each with a tooltip."""
    return "".join(
        f'<circle class="dot {kind}" cx="{frame.at_x(x):.1f}" cy="{frame.at_y(y):.1f}" r="4.5">'
        f"<title>{escape(note)}</title></circle>"
        for x, y, note in points
    )


def upright(frame: Frame, x: float, note: str, kind: str, *, row: int = 0) -> str:
    """Draw a vertical line with a label; different `row`s keep labels from overlapping."""
    place = frame.at_x(x)
    is_right = place > frame.width * 0.72
    text_x = place - 5 if is_right else place + 5
    return (
        f'<line class="mark {kind}" x1="{place:.1f}" x2="{place:.1f}" y1="{frame.top:g}"'
        f' y2="{frame.height - frame.bottom:g}"/>'
        f'<text class="note {kind}" x="{text_x:.1f}" y="{frame.top + 12 + 15 * row:g}"'
        f' text-anchor="{"end" if is_right else "start"}">{escape(note)}</text>'
    )


def bar(frame: Frame, piece: tuple[float, float], kind: str, *, y: float, height: float) -> str:
    """Draw a bar of a timeline, at least 0.6 units wide."""
    left, right = map(frame.at_x, piece)
    width = max(right - left, 0.6)
    return f'<rect class="{kind}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def nice_step(about: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below `about`."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about * (1 - 1e-9))


def short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _octaves(low: float, high: float) -> list[float]:
    first = math.ceil(math.log2(low) - 1e-9)
    last = math.floor(math.log2(high) + 1e-9)
    step = max(1, (last - first) // 8 + 1)
    return [2.0**power for power in range(first, last + 1, step)]


def _path(frame: Frame, points: Points) -> str:
    return "".join(
        f"{'L' if number else 'M'}{frame.at_x(x):.1f},{frame.at_y(y):.1f}"
        for number, (x, y) in enumerate(points)
    )


def _x_axis(frame: Frame) -> list[str]:
    floor = frame.height - frame.bottom
    parts = [
        f'<line class="axis" x1="{frame.left:g}" x2="{frame.width - frame.right:g}"'
        f' y1="{floor:g}" y2="{floor:g}"/>',
        f'<text class="label" x="{(frame.left + frame.width - frame.right) / 2:.1f}" y="{frame.height - 6:g}"'
        f' text-anchor="middle">{escape(frame.x.label)}</text>',
    ]
    for tick in frame.x.ticks:
        place = frame.at_x(tick)
        parts.append(
            f'<line class="axis" x1="{place:.1f}" x2="{place:.1f}" y1="{floor:g}" y2="{floor + 4:g}"/>'
            f'<text class="tick" x="{place:.1f}" y="{floor + 17:g}" text-anchor="middle">'
            f"{short(tick)}{escape(frame.x.unit)}</text>"
        )
    return parts


def _y_axis(frame: Frame) -> list[str]:
    parts = [f'<text class="label" x="{frame.left:g}" y="{frame.top - 4:g}">{escape(frame.y.label)}</text>']
    for tick in frame.y.ticks:
        place = frame.at_y(tick)
        parts.append(
            f'<line class="grid" x1="{frame.left:g}" x2="{frame.width - frame.right:g}" y1="{place:.1f}"'
            f' y2="{place:.1f}"/><text class="tick" x="{frame.left - 8:g}" y="{place + 4:.1f}"'
            f' text-anchor="end">{short(tick)}{escape(frame.y.unit)}</text>'
        )
    return parts
