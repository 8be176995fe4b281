"""Hooks of `mkdocs build` (see mkdocs.yml) that adapt the repository's Markdown files to the site.

- CHANGELOG.md and CONTRIBUTING.md become pages, although they are in the root folder. - A link to a file
outside docs/ becomes a link into the repository if `repo_url` is set, otherwise plain text. - Diagrams are
inlined, so that they use the page's colours and their text can be searched. - A short flag or name in code
is not broken across lines.
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
STYLE_ELEMENT = re.compile(r"<style>.*?</style>\s*", re.DOTALL)


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
    text, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    path, _, anchor = target.partition("#")
    found = Path(os.path.normpath(folder / path))
    if not found.exists() or not found.is_relative_to(ROOT):
        return link[0]  # mkdocs reports the broken link
    name = found.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        inside = ROOT_PAGES[name]
    elif name.startswith("docs/"):
        inside = name.removeprefix("docs/")
    else:
        return f"[{text}]({repo_url.rstrip('/')}/blob/main/{name})" if repo_url else text
    here = Path(page.file.src_uri).parent
    return f"[{text}]({os.path.relpath(inside, here)}{'#' + anchor if anchor else ''})"


def _inlined(image: re.Match[str]) -> str:
    """Return the SVG with the image's text alternative; the page provides colours (docs/assets/site.css)."""
    label, path = image.groups()
    svg = STYLE_ELEMENT.sub("", (ROOT / "docs" / path).read_text(), count=1)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
