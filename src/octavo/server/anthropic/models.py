"""GET /v1/models for clients of the Anthropic API. OpenAI's API has the same paths: a header decides."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from octavo.server.anthropic.errors import is_anthropic
from octavo.server.http.errors import invalid
from octavo.server.state import ServerState

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000


class AnthropicRoute(APIRoute):
    """Answers only requests of clients that speak this API; the next route with the path answers others."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or not is_anthropic(scope):
            return Match.NONE, {}
        return super().matches(scope)


# Not in the OpenAPI document, which has one description for each path: that of OpenAI's API.
router = APIRouter(route_class=AnthropicRoute, include_in_schema=False)


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    query = request.query_params
    names = list(state.names.names)
    after, before = query.get("after_id"), query.get("before_id")
    limit = _limit(query.get("limit"))
    if before is not None:
        names = names[: _position(names, before, "before_id")]
    if after is not None:
        names = names[_position(names, after, "after_id") + 1 :]
    # The list before a name ends with the name before it.
    listed = names[-limit:] if before is not None and after is None else names[:limit]
    return {
        "data": [_described(state, name) for name in listed],
        "first_id": listed[0] if listed else None,
        "last_id": listed[-1] if listed else None,
        "has_more": len(listed) < len(names),
    }


@router.get("/v1/models/{model_id:path}")
async def model(request: Request, model_id: str) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    state.check_model(model_id)
    return _described(state, model_id)


def _described(state: ServerState, name: str) -> dict[str, Any]:
    facts = state.replicas.facts
    context = None if facts is None else facts.max_model_len
    created = datetime.fromtimestamp(state.created, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 1 <= int(given) <= MAX_LIMIT):
        raise invalid(f"limit must be a number from 1 to {MAX_LIMIT}", "limit")
    return int(given)


def _position(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise invalid(f"{param}: the list has no model {name[:100]!r}", param)
    return names.index(name)
