"""Where the panels go: one below the other, the important ones first if there is little room."""

from dataclasses import dataclass
from enum import StrEnum

from octavo.top import panels
from octavo.top.history import History
from octavo.top.paint import Glyphs, Line, Span, Style, line

HELP = "q quit  p pause  a all  m pages  s steps  r requests  f finished  t tree"


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
    least: int  # lines; with fewer it is left out
    share: int  # of what is left when all have their least
    most: int = 1000


# In the order they are shown; when lines are short, the last ones go first.
PARTS = {
    Shown.PAGES: Part(panels.pages, 3, 3, 16),
    Shown.STEPS: Part(panels.steps, 3, 1, 5),
    Shown.REQUESTS: Part(panels.requests, 4, 5),
    Shown.FINISHED: Part(panels.finished, 4, 3),
    Shown.TREE: Part(panels.tree, 3, 2),
}


def frame(
    history: History, width: int, height: int, glyphs: Glyphs, shown: Shown, *, paused: bool
) -> list[Line]:
    """Exactly `height` lines, if there are so many to show."""
    lines = panels.header(history, panels.Space(width, 1, glyphs))
    lines += panels.charts(history, panels.Space(width, min(5, max(2, height // 4)), glyphs))
    room = height - len(lines) - 1
    chosen = list(PARTS.values()) if shown is Shown.ALL else [PARTS[shown]]
    if len(chosen) == 1:
        lines += chosen[0].panel(history, panels.Space(width, room, glyphs))
    else:
        lines += _stacked(history, chosen, width, room, glyphs)
    lines = lines[: height - 1]
    lines += [()] * (height - 1 - len(lines))
    pause = Span("paused  ", Style.WARN) if paused else Span("")
    return [*lines, line(pause, Span(HELP, Style.DIM))]


def _stacked(history: History, parts: list[Part], width: int, room: int, glyphs: Glyphs) -> list[Line]:
    while parts and sum(part.least for part in parts) > room:
        parts = parts[:-1]
    # What a panel has no use for, the others get.
    wanted = [
        min(part.most, len(part.panel(history, panels.Space(width, part.most, glyphs)))) for part in parts
    ]
    heights = [min(part.least, want) for part, want in zip(parts, wanted, strict=True)]
    while (left := room - sum(heights)) > 0:
        open_parts = [index for index, want in enumerate(wanted) if heights[index] < want]
        if not open_parts:
            break
        shares = sum(parts[index].share for index in open_parts)
        for index in open_parts:
            more = max(1, left * parts[index].share // shares)
            heights[index] += min(more, wanted[index] - heights[index], room - sum(heights))
    return [
        row
        for part, height in zip(parts, heights, strict=True)
        for row in part.panel(history, panels.Space(width, height, glyphs))
    ]


def snapshot(history: History, width: int, glyphs: Glyphs) -> list[Line]:
    """All there is, as long as it gets: for scripts."""
    lines = panels.header(history, panels.Space(width, 1, glyphs))
    lines += panels.charts(history, panels.Space(width, 5, glyphs))
    for part in PARTS.values():
        lines += part.panel(history, panels.Space(width, part.most, glyphs))
    return lines
