"""Error responses: one JSON shape, fixed messages, no internal details."""

import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from octavo.errors import (
    ContextLengthError,
    FleetError,
    GrammarError,
    GrammarNotChecked,
    OctavoError,
    PromptNotMade,
    RequestError,
    TemplateError,
    TooManyGrammars,
    UnknownReplica,
)
from octavo.observe.logs import with_fields

logger = logging.getLogger(__name__)


class ApiError(OctavoError):
    """An error response. The message is sent to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        error_id: str | None = None,
        is_overload: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.error_id = error_id  # identifies the details in the log
        self.headers = dict(headers or {})
        self.is_overload = is_overload  # the server is busy, whoever asks

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code},
        }


class ClientDisconnected(Exception):
    """The client has closed its connection, so no response is sent."""


def invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def unsupported(param: str, what: str) -> ApiError:
    return ApiError(400, f"{what} is not supported by this server", param=param, code="unsupported_parameter")


def unavailable(message: str, *, code: str, retry_after: float = 1.0) -> ApiError:
    return ApiError(
        503, message, kind="service_unavailable_error", code=code, headers=_retry_after(retry_after)
    )


def too_many(
    message: str, retry_after: float, *, code: str = "rate_limit_exceeded", is_overload: bool = False
) -> ApiError:
    return ApiError(
        429,
        message,
        kind="rate_limit_error",
        code=code,
        headers=_retry_after(retry_after),
        is_overload=is_overload,
    )


def internal() -> ApiError:
    """Return a 500 error. The client sees only an id, under which the log has the details."""
    error_id = secrets.token_hex(8)
    return ApiError(
        500,
        f"the server failed to answer this request; its log has the details under error id {error_id}",
        kind="server_error",
        code="internal_error",
        error_id=error_id,
    )


def as_api_error(error: Exception, request_id: str) -> ApiError:
    """Return the error response for any exception. Unexpected ones are logged with their traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), param=error.param, code="context_length_exceeded")
    if isinstance(error, PromptNotMade):
        return unavailable(str(error), code="prompt_not_made")
    if isinstance(error, TooManyGrammars):
        return too_many(str(error), error.retry_after, code="grammars_busy")
    if isinstance(error, GrammarNotChecked):
        return unavailable(str(error), code="grammar_not_checked")
    if isinstance(error, GrammarError):
        return ApiError(400, str(error), param=error.param, code="invalid_grammar")
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param)
    if isinstance(error, TemplateError):
        return ApiError(400, str(error), param="messages")
    if isinstance(error, UnknownReplica):
        return ApiError(404, str(error), param="replica", code="replica_not_found")
    if isinstance(error, FleetError):
        return ApiError(409, str(error), code="fleet_conflict")
    internal_error = internal()
    error_id = internal_error.error_id
    fields = with_fields(request_id=request_id, error_id=error_id)
    logger.error("request %s failed (error id %s)", request_id, error_id, exc_info=error, extra=fields)
    return internal_error


def of_validation(error: ValidationError) -> ApiError:
    """Return the error for the first invalid field of a body, by the field's path."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _path(problem["loc"])
    return invalid(f"{param}: {problem['msg']}" if param else problem["msg"], param or None)


def error_response(error: ApiError) -> Response:
    return Response(
        msgspec.json.encode(error.body), error.status, error.headers, media_type="application/json"
    )


def _path(location: tuple[int | str, ...]) -> str:
    """Return messages[0].content for (messages, 0, content), without names of union alternatives."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in {"str", "int", "float", "bool"} and not part[:1].isupper():
            path += f".{part}" if path else part
    return path


def _retry_after(seconds: float) -> dict[str, str]:
    return {
        "retry-after": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, round(seconds * 1000))),
    }
