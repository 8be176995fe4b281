"""Hooks of `mkdocs build` (see mkdocs.yml): what is written for readers of the repository becomes a site.

- CHANGELOG.md and CONTRIBUTING.md are pages of it, though they lie at the root.
- A link to a file outside docs/ becomes a link into the repository if `repo_url` is set, else plain words.
- Diagrams are put into the page itself, so that they follow its colours and their words can be found.
- A flag or name in code is not broken over two lines.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
IMAGE = re.compile(r'<img alt="([^"]*)" src="[^"]*?(assets/diagrams/[\w-]+\.svg)"\s*/?>')
WORD = re.compile(r"<code>([^<\n]{1,26}|[^<\s]{1,36})</code>")
COLOURS_OF_ITS_OWN = re.compile(r"<style>.*?</style>\s*", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = Path(page.file.abs_src_path or "").parent
    return LINK.sub(lambda link: _link(link, page, folder, config.repo_url), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return WORD.sub(r'<code class="word">\1</code>', IMAGE.sub(_inlined, html))


def _link(link: re.Match[str], page: Page, folder: Path, repo_url: str | None) -> str:
    words, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    path, _, anchor = target.partition("#")
    found = Path(os.path.normpath(folder / path))
    if not found.exists() or not found.is_relative_to(ROOT):
        return link[0]  # mkdocs says what is wrong with it
    name = found.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        inside = ROOT_PAGES[name]
    elif name.startswith("docs/"):
        inside = name.removeprefix("docs/")
    else:
        return f"[{words}]({repo_url.rstrip('/')}/blob/main/{name})" if repo_url else words
    here = Path(page.file.src_uri).parent
    return f"[{words}]({os.path.relpath(inside, here)}{'#' + anchor if anchor else ''})"


def _inlined(image: re.Match[str]) -> str:
    """With the words that stand for it; colours then come from the page (docs/assets/site.css)."""
    words, path = image.groups()
    svg = COLOURS_OF_ITS_OWN.sub("", (ROOT / "docs" / path).read_text(), count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{words}" ', 1)
