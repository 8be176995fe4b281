"""Lines of a terminal: styled text, cut to a width. Text from a server cannot move the cursor."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

RESET = "\033[0m"
# Colours of requests, by slot: easy to distinguish on black and on white.
SLOT_COLOURS = (33, 208, 40, 163, 178, 44, 197, 99, 71, 130, 38, 170, 106, 203, 63, 142)
SLOT_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class CellStyle(StrEnum):
    """The text between `ESC [` and `m`."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    TITLE = "1;36"
    GOOD = "32"
    WARN = "33"
    BAD = "1;31"
    HELD = "36"
    PREFILL = "38;5;208"


def of_slot(slot: int) -> str:
    return f"38;5;{SLOT_COLOURS[slot % len(SLOT_COLOURS)]}"


@dataclass(frozen=True)
class Glyphs:
    """The characters of charts and maps; `bars` goes from low to high."""

    bars: str
    free: str
    idle: str
    held: str
    chunk: str
    decode: str
    preempted: str
    rule: str
    branch: str
    last_branch: str
    trunk: str
    light: str


UNICODE = Glyphs(" ▁▂▃▄▅▆▇█", "·", "░", "▒", "█", "▪", "✗", "─", "├─", "└─", "│ ", "●")
ASCII = Glyphs(" .:-=+*#@", ".", "-", "=", "#", ".", "x", "-", "|-", "`-", "| ", "*")


@dataclass(frozen=True)
class Span:
    text: str
    style: str = CellStyle.PLAIN


Line = tuple[Span, ...]


def clean(text: str) -> str:
    """Replace every character that does not take exactly one column."""
    wide = ("W", "F")
    return "".join(
        c
        if c.isprintable() and not unicodedata.combining(c) and unicodedata.east_asian_width(c) not in wide
        else "?"
        for c in text
    )


def line(*parts: str | Span) -> Line:
    return tuple([part if isinstance(part, Span) else Span(part) for part in parts])


def width_of(spans: Iterable[Span]) -> int:
    return sum([len(span.text) for span in spans])


def runs(cells: Sequence[tuple[str, str]]) -> Line:
    """Join characters with the same style into spans."""
    spans: list[Span] = []
    for character, style in cells:
        if spans and spans[-1].style == style:
            spans[-1] = Span(spans[-1].text + character, style)
        else:
            spans.append(Span(character, style))
    return tuple(spans)


def rendered(spans: Line, width: int, *, colour: bool) -> str:
    """Return the line cut to the width; without colour, trailing blanks are removed."""
    pieces: list[str] = []
    left = width
    for span in spans:
        text = span.text[:left]
        left -= len(text)
        pieces.append(f"\033[{span.style}m{text}{RESET}" if colour and span.style and text else text)
    text = "".join(pieces)
    return text if colour else text.rstrip()


def sparkline(
    values: Sequence[float | None], width: int, bars: str, *, full_scale: float | None = None
) -> str:
    """Draw the last `width` values, scaled to `full_scale` or to the largest of them; None leaves a gap."""
    shown = values[-width:] if width > 0 else []
    top = full_scale or max([value for value in shown if value is not None], default=0.0)
    levels = len(bars) - 1
    return "".join(
        [
            " " if value is None else bars[0 if top <= 0 else min(levels, round(0.49 + levels * value / top))]
            for value in shown
        ]
    ).rjust(max(width, 0))


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
