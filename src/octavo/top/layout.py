"""The layout of the screen: panels stacked vertically, the less important ones dropped if space is short."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from octavo.top import panels
from octavo.top.history import History
from octavo.top.paint import CellStyle, Glyphs, Line, Span, line
from octavo.top.replicas import lines_of_replicas, replicas

HELP = "q quit  p pause  a all  m blocks  s steps  r requests  f finished  t tree"
FLEET_HELP = "q quit  p pause  a all  e replicas  m s r f t panels  n next  b back  0 auto"
CHART_LINES = 5


class Shown(StrEnum):
    """What fills the screen. The value is the key that selects it."""

    ALL = "a"
    REPLICAS = "e"
    BLOCKS = "m"
    STEPS = "s"
    REQUESTS = "r"
    FINISHED = "f"
    TREE = "t"


@dataclass(frozen=True)
class Part:
    panel: panels.Panel
    num_lines: Callable[[History, int], int]  # that it could fill, at a width; 0: it is left out
    min_lines: int  # without space for them, the part is left out
    share: int  # of the space that remains when all parts have their minimum
    max_lines: int = 10_000


# In display order. If space is short, the last ones are dropped first.
PARTS = {
    Shown.REPLICAS: Part(replicas, lines_of_replicas, 6, 4),
    Shown.BLOCKS: Part(panels.blocks, panels.lines_of_blocks, 3, 3, 16),
    Shown.STEPS: Part(panels.steps, panels.lines_of_steps, 3, 1),
    Shown.REQUESTS: Part(panels.requests, panels.lines_of_requests, 4, 5),
    Shown.FINISHED: Part(panels.finished, panels.lines_of_finished, 4, 3),
    Shown.TREE: Part(panels.tree, panels.lines_of_tree, 3, 2),
}


def frame(
    history: History, width: int, height: int, glyphs: Glyphs, shown: Shown, *, paused: bool
) -> list[Line]:
    """Return as many lines as the terminal has. The last line lists the keys."""
    lines = panels.header(history, panels.Space(width, 1, glyphs))
    lines += panels.charts(history, panels.Space(width, min(CHART_LINES, max(2, height // 4)), glyphs))
    room = max(0, height - len(lines) - 1)
    if shown is Shown.ALL:
        lines += _stacked(history, list(PARTS.values()), width, room, glyphs)
    else:
        lines += PARTS[shown].panel(history, panels.Space(width, room, glyphs))
    lines = lines[: height - 1]
    lines += [()] * (height - 1 - len(lines))
    pause = Span("paused  ", CellStyle.WARN) if paused else Span("")
    keys = FLEET_HELP if len(history.fleet.replicas) > 1 else HELP
    return [*lines, line(pause, Span(keys, CellStyle.DIM))]


def _stacked(history: History, parts: list[Part], width: int, room: int, glyphs: Glyphs) -> list[Line]:
    full = [min(part.max_lines, part.num_lines(history, width)) for part in parts]
    heights = [min(part.min_lines, lines) for part, lines in zip(parts, full, strict=True)]
    while sum(heights) > room:
        heights.pop()
    while (left := room - sum(heights)) > 0:
        growing = [index for index, height in enumerate(heights) if height < full[index]]
        if not growing:
            break
        shares = sum([parts[index].share for index in growing])
        for index in growing:
            more = max(1, left * parts[index].share // shares)
            heights[index] += min(more, full[index] - heights[index], room - sum(heights))
    return [
        row
        for part, height in zip(parts, heights, strict=False)
        for row in part.panel(history, panels.Space(width, height, glyphs))
    ]


def snapshot(history: History, width: int, glyphs: Glyphs) -> list[Line]:
    """Return all panels at full height, for scripts."""
    lines = panels.header(history, panels.Space(width, 1, glyphs))
    lines += panels.charts(history, panels.Space(width, CHART_LINES, glyphs))
    for part in PARTS.values():
        if part.num_lines(history, width):
            lines += part.panel(history, panels.Space(width, part.max_lines, glyphs))
    return lines
