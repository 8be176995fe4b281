"""The pages of the documentation, their code blocks, and the words that are marked as code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"<!-- test: ([\w-]+) -->")
TITLE = re.compile(r'title="([^"]+)"')
MADE = "<!-- Made by "  # the start of a generated page, which another test compares with its generator


@dataclass(frozen=True)
class Block:
    """A code block. `marker` names the kind of test that runs it; `title` is the file it is an excerpt of."""

    page: str
    line: int
    language: str
    title: str | None
    marker: str | None
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Return the commands of a console block: each goes from its `$ ` to the next one."""
        return [one.strip() for one in re.split(r"^\$ ", self.body, flags=re.MULTILINE) if one.strip()]


@cache
def pages() -> tuple[str, ...]:
    """Return the paths of all pages."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("deploy/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found))


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def is_made(page: str) -> bool:
    return text_of(page).startswith(MADE)


@cache
def blocks(page: str) -> tuple[Block, ...]:
    return tuple(_blocks(page))


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def marked(kind: str) -> dict[str, list[Block]]:
    """Return the blocks with this marker by page, without pages that have none."""
    found = {page: [block for block in blocks(page) if block.marker == kind] for page in pages()}
    return {page: those for page, those in found.items() if those}


@cache
def code_words(page: str) -> tuple[str, ...]:
    """Return the texts between backticks on a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text_of(page))
    inlines = [child for token in tokens for child in token.children or ()]
    return tuple(child.content for child in inlines if child.type == "code_inline")


def _blocks(page: str) -> Iterator[Block]:
    marker = None
    for token in MarkdownIt("commonmark").enable("table").parse(text_of(page)):
        line = (token.map or [0])[0] + 1
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = TITLE.search(rest)
            yield Block(page, line, language, title and title[1], marker, token.content)
        elif token.type == "code_block":
            yield Block(page, line, "(indented)", None, marker, token.content)
        found = MARKER.fullmatch(token.content.strip()) if token.type == "html_block" else None
        marker = found[1] if found else None
