"""Building blocks of a report: one HTML file without scripts or external files, light and dark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

STYLE = files(__package__).joinpath("report.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Cell:
    """A table cell. `name` and `value` carry the exact value of `text` for programs."""

    text: str
    name: str = ""
    value: float | None = None
    is_text: bool = False

    @property
    def attributes(self) -> str:
        found = ' class="text"' if self.is_text else ""
        if self.name and self.value is not None:
            found += f' data-name="{escape(self.name)}" data-value="{self.value!r}"'
        return found


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole page. Its Content-Security-Policy forbids scripts and all requests."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def heading(title: str, *lines: str) -> str:
    return f"<h1>{escape(title)}</h1>" + "".join(f'<p class="soft">{escape(line)}</p>' for line in lines)


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(("?", ".")) else ".")


def paragraph(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def cards(items: Iterable[tuple[Cell, str]]) -> str:
    shown = "".join(
        f"<li><b{cell.attributes}>{escape(cell.text)}</b><span>{escape(label)}</span></li>"
        for cell, label in items
    )
    return f'<ul class="cards">{shown}</ul>'


def warnings(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>'


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td{cell.attributes}>{escape(cell.text)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    # tabindex lets keyboard users scroll a wide table.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def key(items: Iterable[tuple[str, str]]) -> str:
    """Return a legend of (CSS class, text) pairs."""
    shown = "".join(f'<li><i class="{kind}"></i>{escape(text)}</li>' for kind, text in items)
    return f'<ul class="key">{shown}</ul>'


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
