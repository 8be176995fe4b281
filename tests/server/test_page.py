"""The files of the web page: their headers, paths that must not be served, and agreement with the sources."""

import asyncio
import filecmp
import json
import os
import re
import shutil
import subprocess
from http.client import HTTPConnection
from pathlib import Path

import pytest

from octavo.config import ServerOptions
from octavo.frontend.text_model import TextModel
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.operate.page import FOLDER, INDEX, POLICY, read_page
from octavo.server.state import ServerState
from patience import HANG_SECONDS
from server.exchange import Exchange
from server.fake_replicas import FakeReplicas
from server.process import Server
from server.scripted import FACTS

WEB = Path(__file__).parents[2] / "web"
MAX_BYTES = 400_000  # all files together; a third of it if a proxy compresses

STRANGE = (
    "/page",
    "/page/",
    "/page/assets",
    "/page/assets/",
    "/page/nothing.js",
    "/page/../page.py",
    "/page/%2e%2e/page.py",
    "/page/..%2fpage.py",
    "/page/assets/..%2f..%2f..%2fapp.py",
    "/page//etc/passwd",
    "/page/%00",
    "/page/assets\\index.js",
    "/index.html",
    "//",
)


def page_answer(model: TextModel, path: str, **options: bool | str) -> Exchange:
    """Return the answer of an application with these options to a request without a key."""

    async def ask() -> Exchange:
        server_options = ServerOptions.model_validate(options)
        state = ServerState(server_options, model, FakeReplicas(FACTS))  # type: ignore[arg-type]
        try:
            app = build_app(state, Keys.from_options(server_options))
            return await Exchange(app, path, None, ((b"host", b"localhost"),)).done()
        finally:
            state.close()

    return asyncio.run(ask())


def test_only_the_page_can_be_loaded_without_a_key(tiny_model: TextModel) -> None:
    index = page_answer(tiny_model, "/", api_key="secret")
    assert (index.status, index.content) == (200, (FOLDER / INDEX).read_bytes())
    names = re.findall(r'(?:src|href)="/page/([^"]+)"', index.content.decode())
    assert {name.rpartition(".")[2] for name in names} == {"js", "css", "svg"}
    for name in names:
        assert (
            page_answer(tiny_model, f"/page/{name}", api_key="secret").content == (FOLDER / name).read_bytes()
        )
    for path in ("/v1/models", "/octavo/view", "/metrics", "/openapi.json"):
        assert page_answer(tiny_model, path, api_key="secret").status == 401


def test_the_page_has_security_and_cache_headers(tiny_model: TextModel) -> None:
    for name in read_page():
        headers = page_answer(tiny_model, f"/page/{name}").headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        is_asset = name.startswith("assets/")
        assert headers["cache-control"] == ("public, max-age=31536000, immutable" if is_asset else "no-cache")
        assert is_asset == bool(re.search(r"-[\w-]{8}\.\w+$", name)), (
            "files that are cached for ever need a hash in their names"
        )
    assert page_answer(tiny_model, "/").headers["cache-control"] == "no-cache"
    allowed = dict(directive.split(" ", 1) for directive in POLICY.split("; "))
    assert allowed.pop("default-src") == "'none'"
    assert {word for words in allowed.values() for word in words.split()} == {"'self'", "'none'", "data:"}


def test_the_page_can_be_disabled(tiny_model: TextModel) -> None:
    for path in ("/", "/page/index.html", *(f"/page/{name}" for name in read_page())):
        assert page_answer(tiny_model, path, page=False).status == 404
    assert page_answer(tiny_model, "/livez", page=False).status == 200


@pytest.mark.xdist_group("server")
def test_only_the_files_of_the_page_are_served(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=HANG_SECONDS)  # sends paths unchanged
    for path in STRANGE:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 404, path
        assert json.loads(content)["error"]["message"] == "there is no such endpoint"
    for method, status in (("HEAD", 200), ("POST", 405), ("DELETE", 405)):
        connection.request(method, "/")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status, method
    connection.request("GET", "/", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 421
    assert "page" not in {path.split("/")[1] for path in server.get("/openapi.json").json()["paths"]}


def test_the_page_is_small_and_refers_to_no_other_host() -> None:
    files = read_page()
    assert sum(len(file.content) for file in files.values()) < MAX_BYTES
    for name, file in files.items():
        # Names of XML namespaces are not addresses.
        addresses = set(re.findall(rb"(?:https?:)?//(?!www\.w3\.org/)[\w-]+\.[a-z]{2,}", file.content))
        assert not addresses, (name, addresses)


def test_the_committed_page_matches_its_sources(tmp_path: Path) -> None:
    """Type-check and build the page; the result must be identical to the committed files."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed: the page cannot be built here")
    if not (WEB / "node_modules").exists():
        npm("install", "--no-save")
    npm("run", "build", "--", "--outDir", str(tmp_path / "page"), "--logLevel", "error")
    built = {path.relative_to(tmp_path / "page").as_posix() for path in (tmp_path / "page").rglob("*.*")}
    assert built == set(read_page()), "run `npm run build` in web/ and commit the result"
    _, different, failed = filecmp.cmpfiles(tmp_path / "page", FOLDER, sorted(built), shallow=False)
    assert (different, failed) == ([], []), "run `npm run build` in web/ and commit the result"


def npm(*arguments: str) -> None:
    done = subprocess.run(
        ["npm", *arguments], cwd=WEB, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    if done.returncode != 0 and arguments == ("ci",):
        pytest.skip(f"npm cannot install the packages of web/: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_file_names_no_registry() -> None:
    """So it works with any registry. Hashes guarantee that the packages are the same."""
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for name, package in packages.items() if name)


def test_an_installed_package_contains_the_page(tmp_path: Path) -> None:
    python = os.environ.get("OCTAVO_TEST_PYTHON")
    if python is None:
        pytest.skip("OCTAVO_TEST_PYTHON is not set: it names a Python with a plain install")
    program = "from octavo.server.operate.page import FOLDER; print(FOLDER)"
    done = subprocess.run(
        [python, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    installed = Path(done.stdout.strip())
    assert installed != FOLDER
    assert read_page(installed) == read_page()
