"""Errors in the form of Ollama's API."""

from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from octavo.server.http.errors import ApiError
from octavo.server.http.sse import encode

API = "/api/"


def is_ollama(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(API)


def error_response(error: ApiError) -> Response:
    return Response(encode(error_body(error)), error.status, error.headers, media_type="application/json")


def error_line(error: ApiError) -> bytes:
    """Return the last line of a stream whose answer cannot be completed."""
    return encode(error_body(error)) + b"\n"


def error_body(error: ApiError) -> dict[str, Any]:
    return {"error": str(error)}
