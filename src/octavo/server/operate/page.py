"""GET /: the web page with the playground and the engine view, shipped as built from `web/`.

The page requires no key: it contains nothing about this server, and requests its data with the key that the
user enters. Its files are read once. A request only looks up a name in a dict, so path traversal is
impossible.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
ASSETS = "assets/"  # file names contain a hash of the content, so a file never changes

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Only this server's files and API, and no embedding in other pages.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
REVALIDATE = "no-cache"
IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class PageFile:
    content: bytes
    media_type: str
    cache_control: str

    @classmethod
    def read(cls, path: Path, name: str) -> Self:
        cache_control = IMMUTABLE if name.startswith(ASSETS) else REVALIDATE
        return cls(path.read_bytes(), MEDIA_TYPES[path.suffix], cache_control)


def read_page(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """Return every file of the page by its path relative to the folder."""
    # Skip what editors and file managers leave behind.
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in MEDIA_TYPES)
    return {(name := path.relative_to(folder).as_posix()): PageFile.read(path, name) for path in paths}


def page_router() -> APIRouter:
    files = read_page()
    router = APIRouter()

    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def index() -> Response:
        return _response(files[INDEX])

    @router.api_route("/page/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return _response(found)

    return router


def root_router() -> APIRouter:
    """Return the router of a server without the page: some clients probe `/` before their first request."""
    router = APIRouter(route_class=HeadRoute)

    @router.head("/", include_in_schema=False)
    async def root() -> Response:
        return Response()

    return router


class HeadRoute(APIRoute):
    """A route that does not exist for other methods, so they get 404 instead of 405."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


def _response(file: PageFile) -> Response:
    headers = SECURITY_HEADERS | {"cache-control": file.cache_control}
    return Response(file.content, headers=headers, media_type=file.media_type)
