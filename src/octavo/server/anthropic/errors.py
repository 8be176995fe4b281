"""Errors in the form of the Anthropic API."""

from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from octavo.server.http.errors import ApiError
from octavo.server.http.sse import encode, named_event

MESSAGES = "/v1/messages"
VERSION_HEADER = "anthropic-version"
ID_HEADER = b"request-id"
OVERLOADED = 529
# Before the message of a prompt beyond the context: agents look for it and shorten the conversation.
TOO_LONG = "prompt is too long: "
# The front end names fields as OpenAI's API does.
OWN_NAMES = {
    "stop": "stop_sequences",
    "logprobs": "top_logprobs",
    "tool_choice.function.name": "tool_choice.name",
}
SCHEMA_SUFFIX, OWN_SCHEMA_SUFFIX = ".function.parameters", ".input_schema"

# Clients that ask the server to hold a conversation send the whole of it after an error with this code.
NO_THREADS = "thread_unsupported_request"

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


def is_anthropic(scope: Scope) -> bool:
    """Whether the client speaks this API: by the path, or by a header where two APIs share a path."""
    path: str = scope["path"]
    return path == MESSAGES or path.startswith(MESSAGES + "/") or VERSION_HEADER in Headers(scope=scope)


def error_response(error: ApiError, request_id: str) -> Response:
    body = encode(error_body(error, request_id))
    return Response(body, status_of(error), error.headers, media_type="application/json")


def error_event(error: ApiError, request_id: str) -> bytes:
    return named_event("error", error_body(error, request_id))


def status_of(error: ApiError) -> int:
    return OVERLOADED if error.is_overload or error.status == 503 else error.status


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    status = status_of(error)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    described: dict[str, Any] = {"type": kind, "message": message_of(error)}
    if error.code == NO_THREADS:
        described["details"] = {"error_code": NO_THREADS, "unsupported": [error.param]}
    return {"type": "error", "error": described, "request_id": request_id}


def message_of(error: ApiError) -> str:
    """Return the message, which names the field: errors of this API have no member for it."""
    message = str(error)
    if error.code == "context_length_exceeded":
        return TOO_LONG + message
    if error.param is None:
        return message
    own = own_name(error.param)
    if "." in error.param:
        message = message.replace(error.param, own)
    elif message.startswith(error.param):
        message = own + message.removeprefix(error.param)
    return message if own in message else f"{own}: {message}"


def own_name(param: str) -> str:
    if param.endswith(SCHEMA_SUFFIX):
        return param.removesuffix(SCHEMA_SUFFIX) + OWN_SCHEMA_SUFFIX
    return OWN_NAMES.get(param, param)
