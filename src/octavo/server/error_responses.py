"""What depends on the API that the client speaks: the form of error responses, and the header with the id."""

from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Scope

from octavo.server.anthropic import errors as anthropic
from octavo.server.http.errors import ApiError, error_response
from octavo.server.ollama import errors as ollama
from octavo.server.operate.record import RequestRecord


def respond_with(error: ApiError, scope: Scope, record: RequestRecord) -> Response:
    """Return the response for an error that ends a request, and note it in the record."""
    record.note_error(error)
    if ollama.is_ollama(scope):
        return ollama.error_response(error)
    if anthropic.is_anthropic(scope):
        return anthropic.error_response(error, record.request_id)
    return error_response(error)


def id_headers(scope: Scope, request_id: str) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers that identify a request, for every response."""
    value = request_id.encode()
    own = (b"x-request-id", value)
    return (own, (anthropic.ID_HEADER, value)) if anthropic.is_anthropic(scope) else (own,)
