"""Read and validate request bodies, within limits of size and time."""

import asyncio
import gc
from typing import Any, TypeVar

import msgspec
import pydantic
from fastapi import Request

from octavo.config import format_size
from octavo.server.http.budget import SMALL_BYTES, Holding
from octavo.server.http.errors import ApiError, ClientDisconnected, invalid, of_validation
from octavo.server.http.keys import caller

BODY_SECONDS = 60.0

# JSON costs more than its bytes: objects and lists, their names, their values. With these limits, decoding
# and validation take less than 0.1 s.
MAX_CONTAINERS = 16 << 10
MAX_NAMES = 128 << 10
MAX_STRINGS = 256 << 10
MAX_VALUES = 512 << 10

Body = TypeVar("Body", bound=pydantic.BaseModel)


async def read_request(request: Request, kind: type[Body], max_bytes: int) -> Body:
    # Browsers let web pages send forms and plain text across origins without a preflight, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "send JSON with the header 'Content-Type: application/json'")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "compressed bodies are not supported: send plain JSON")
    holding: Holding = request.state.holding
    holding.tenant = caller(request)
    body = await _read(request, max_bytes, holding)
    if len(body) <= SMALL_BYTES:
        return parse(body, kind)
    async with holding.turn():
        return parse(body, kind)


def parse(body: bytes, kind: type[Body]) -> Body:
    """Return the validated body. JSON is strict: finite numbers, Unicode strings, bounded nesting."""
    _check_structure(body)
    try:
        content = _decoded(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise invalid("the body is not valid JSON") from error
    if not isinstance(content, dict):
        raise invalid("the body must be a JSON object")
    try:
        return kind.model_validate(content)
    except pydantic.ValidationError as error:
        raise of_validation(error) from error
    except RecursionError as error:
        raise invalid("the body is nested too deeply") from error


def _check_structure(body: bytes) -> None:
    if _has_few_parts(body):
        return
    # Count again without the contents of strings: without escapes, every other piece between quotes is one.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') <= 2 * MAX_STRINGS and _has_few_parts(b"".join(plain.split(b'"')[::2])):
        return
    raise invalid("the body has too many objects, lists, names or values")


def _has_few_parts(body: bytes) -> bool:
    return (
        body.count(b"{") + body.count(b"[") <= MAX_CONTAINERS
        and body.count(b":") <= MAX_NAMES
        and body.count(b",") <= MAX_VALUES
    )


def _decoded(body: bytes) -> Any:
    """Decode with the garbage collector paused.

    JSON has no reference cycles, but a million lists would trigger many collections, which block the event
    loop.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return msgspec.json.decode(body)
    finally:
        if was_enabled:
            gc.enable()


async def _read(request: Request, max_bytes: int, holding: Holding) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise ClientDisconnected
                piece = message.get("body", b"")
                num_bytes += len(piece)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
                holding.take(len(piece))
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError as error:
        raise ApiError(408, "the body did not arrive in time", headers={"connection": "close"}) from error


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {format_size(max_bytes)}",
        code="request_too_large",
        headers={"connection": "close"},
    )
