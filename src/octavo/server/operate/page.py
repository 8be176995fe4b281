"""GET /: the page that shows a playground and the engine at work. It is built from `web/`, and ships built.

Everybody may load it, for it says nothing of this server: what it shows it asks for, with the key that the
person has typed. Its files are read once. A request only looks up a name in a dict, so there is no path to
climb.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
ASSETS = "assets/"  # names in there contain a hash of the content, so that they never change their meaning

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing but our own files and our own API, and no frame of another page.
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
GUARDS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
CHECK_AGAIN = "no-cache"
FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class PageFile:
    content: bytes
    media_type: str
    cache_control: str

    @classmethod
    def read(cls, path: Path, name: str) -> Self:
        keeps = FOR_EVER if name.startswith(ASSETS) else CHECK_AGAIN
        return cls(path.read_bytes(), MEDIA_TYPES[path.suffix], keeps)


def read_page(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """Every file of the page, by its name below the folder."""
    # What an editor or a file manager has left there is not of the page.
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


def _response(file: PageFile) -> Response:
    headers = GUARDS | {"cache-control": file.cache_control}
    return Response(file.content, headers=headers, media_type=file.media_type)
