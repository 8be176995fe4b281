"""The site builds in strict mode, its links and anchors resolve, and it loads no external resources."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import diagrams
import pytest
import reference

from docs.pages import ROOT, pages, text_of

MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass
class Html(HTMLParser):
    """Collects the links, resources and anchors of a page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Html]:
    read = {path: Html() for path in site.rglob("*.html")}
    for path, html in read.items():
        html.feed(path.read_text(encoding="utf-8"))
    assert len(read) > 25
    return read


def test_links_and_anchors_resolve(site: Path, built: dict[Path, Html]) -> None:
    broken = []
    for path, html in built.items():
        for link in html.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("http", "https"), f"{path.name}: {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            is_page = target in built
            if not target.exists() or (
                parts.fragment and is_page and parts.fragment not in built[target].ids
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    # The 404 page has absolute links, since it is served at any path.
    assert not [one for one in broken if not one.startswith("404.html")]


def test_site_loads_no_external_resources(site: Path, built: dict[Path, Html]) -> None:
    for path, html in built.items():
        foreign = [link for link in html.loaded if urlsplit(link).scheme not in ("", "data")]
        assert not foreign, f"{path.name}: {foreign}"
        # Material would fetch the renderer for such a diagram.
        assert "mermaid" not in html.classes, path.name
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import\s)['\"]?(?:https?:)?//[^)]*", path.read_text()), path.name


def test_every_page_is_built(site: Path) -> None:
    for page in pages():
        if page.startswith("docs/"):
            assert (site / page.removeprefix("docs/")).with_suffix(".html").exists(), page


@pytest.mark.parametrize("page", pages())
def test_links_resolve_in_the_repository(page: str) -> None:
    """Links also work when the Markdown files are read in the repository."""
    folder = (ROOT / page).parent
    relative = [link for link in MARKDOWN_LINK.findall(text_of(page)) if not urlsplit(link).scheme]
    missing = [link for link in relative if not (folder / link.partition("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("name", reference.pages())
def test_the_reference_is_current(name: str) -> None:
    written = (reference.DOCS / name).read_text()
    assert written == reference.pages()[name], "run `make reference`"


@pytest.mark.parametrize("name", diagrams.files())
def test_the_diagrams_are_current(name: str) -> None:
    assert (diagrams.FOLDER / name).read_text() == diagrams.files()[name], "run `make reference`"
