"""Where the panels go: one below the other, the important ones first if there is little room."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from octavo.top import panels
from octavo.top.history import History
from octavo.top.paint import Glyphs, Line, Span, Style, line

HELP = "q quit  p pause  a all  m pages  s steps  r requests  f finished  t tree"
CHART_LINES = 5


class Shown(StrEnum):
    """What fills the screen. The value is the key."""

    ALL = "a"
    PAGES = "m"
    STEPS = "s"
    REQUESTS = "r"
    FINISHED = "f"
    TREE = "t"


@dataclass(frozen=True)
class Part:
    panel: panels.Panel
    wanted: Callable[[History, int], int]  # lines it could fill, at a width
    least: int  # lines; if there is no room for them, the part is left out
    share: int  # of what is left when all have their least
    most: int = 1000


# In the order they are shown; when lines are short, the last ones go first.
PARTS = {
    Shown.PAGES: Part(panels.pages, panels.lines_of_pages, 3, 3, 16),
    Shown.STEPS: Part(panels.steps, panels.lines_of_steps, 3, 1),
    Shown.REQUESTS: Part(panels.requests, panels.lines_of_requests, 4, 5),
    Shown.FINISHED: Part(panels.finished, panels.lines_of_finished, 4, 3),
    Shown.TREE: Part(panels.tree, panels.lines_of_tree, 3, 2),
}


def frame(
    history: History, width: int, height: int, glyphs: Glyphs, shown: Shown, *, paused: bool
) -> list[Line]:
    """As many lines as the terminal has; the last tells the keys."""
    lines = panels.header(history, panels.Space(width, 1, glyphs))
    lines += panels.charts(history, panels.Space(width, min(CHART_LINES, max(2, height // 4)), glyphs))
    room = max(0, height - len(lines) - 1)
    if shown is Shown.ALL:
        lines += _stacked(history, list(PARTS.values()), width, room, glyphs)
    else:
        lines += PARTS[shown].panel(history, panels.Space(width, room, glyphs))
    lines = lines[: height - 1]
    lines += [()] * (height - 1 - len(lines))
    pause = Span("paused  ", Style.WARN) if paused else Span("")
    return [*lines, line(pause, Span(HELP, Style.DIM))]


def _stacked(history: History, parts: list[Part], width: int, room: int, glyphs: Glyphs) -> list[Line]:
    wanted = [min(part.most, part.wanted(history, width)) for part in parts]
    heights = [min(part.least, want) for part, want in zip(parts, wanted, strict=True)]
    while sum(heights) > room:
        heights.pop()
    while (left := room - sum(heights)) > 0:
        growing = [index for index, height in enumerate(heights) if height < wanted[index]]
        if not growing:
            break
        shares = sum([parts[index].share for index in growing])
        for index in growing:
            more = max(1, left * parts[index].share // shares)
            heights[index] += min(more, wanted[index] - heights[index], room - sum(heights))
    return [
        row
        for part, height in zip(parts, heights, strict=False)
        for row in part.panel(history, panels.Space(width, height, glyphs))
    ]


def snapshot(history: History, width: int, glyphs: Glyphs) -> list[Line]:
    """All there is, as long as it gets: for scripts."""
    lines = panels.header(history, panels.Space(width, 1, glyphs))
    lines += panels.charts(history, panels.Space(width, CHART_LINES, glyphs))
    for part in PARTS.values():
        lines += part.panel(history, panels.Space(width, part.most, glyphs))
    return lines
