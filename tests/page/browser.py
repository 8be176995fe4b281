"""Opens the web page in a browser, and checks requests, errors and accessibility."""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

from patience import HANG_SECONDS

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")

# The browser reports what the Content-Security-Policy blocked.
REPORT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(event.violatedDirective + " " + event.blockedURI);
});
"""


@contextmanager
def launched() -> Iterator["Browser"]:
    """Launch the Chromium of the system; nothing is downloaded."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    path = os.environ.get("OCTAVO_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium found: install it (Debian: apt-get install chromium) or set OCTAVO_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


Scheme = Literal["light", "dark"]


class Open(Protocol):
    def __call__(
        self,
        *,
        expected_status: int | None = None,
        size: tuple[int, int] = ...,
        color_scheme: Scheme | None = None,
        has_touch: bool | None = None,
    ) -> AbstractContextManager["Page"]: ...


@dataclass
class Seen:
    """Requests and errors while a page was open."""

    origin: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def watch(self, page: "Page") -> None:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: (
                self.errors.append(message.text) if message.type in ("error", "warning") else None
            ),
        )

    def check(self, page: "Page", expected_status: int | None) -> None:
        """Check that there were no requests to other hosts and only the expected errors."""
        elsewhere = [
            url for url in self.requests if "{0.scheme}://{0.netloc}".format(urlsplit(url)) != self.origin
        ]
        assert not elsewhere
        assert page.evaluate("window.violations") == []
        expected = f"responded with a status of {expected_status}"
        assert [error for error in self.errors if expected_status is None or expected not in error] == []


@contextmanager
def opened(
    browser: "Browser",
    url: str,
    *,
    key: str | None,
    expected_status: int | None = None,
    size: tuple[int, int] = (1280, 800),
    color_scheme: Scheme | None = None,
    has_touch: bool | None = None,
) -> Iterator["Page"]:
    """Open the page in a new browser context, and check it at the end."""
    made = browser.new_context(
        permissions=["clipboard-read", "clipboard-write"],
        viewport={"width": size[0], "height": size[1]},
        reduced_motion="reduce",
        color_scheme=color_scheme,
        has_touch=has_touch,
    )
    made.set_default_timeout(1000 * HANG_SECONDS)
    try:
        made.add_init_script(REPORT_VIOLATIONS)
        if key is not None:
            made.add_init_script(
                f"sessionStorage.getItem('octavo-key') ?? sessionStorage.setItem('octavo-key', '{key}')"
            )
        page = made.new_page()
        seen = Seen(url)
        seen.watch(page)
        page.goto(f"{url}/")
        yield page
        seen.check(page, expected_status)
    finally:
        made.close()


def serious_violations(page: "Page") -> list[str]:
    """Return what axe-core finds. It can be injected because the policy does not apply to the debugger."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run `npm install --no-save` in web/")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]
