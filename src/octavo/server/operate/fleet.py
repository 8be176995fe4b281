"""The replicas, for the operator: GET /octavo/fleet, and POST drain, add, restart under it (docs/fleet.md).

Moving requests and starting engines takes seconds or minutes. So the commands return at once, with a number,
and GET /octavo/fleet shows how they proceed and end.
"""

from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

import octavo
from octavo.membership.operations import AfterDrain
from octavo.server.http.body import read_request
from octavo.server.http.keys import require_operator
from octavo.server.openapi import BODY_ERRORS, failures, json_body
from octavo.server.state import ServerState
from octavo.server.wire import WireModel
from octavo.status import FleetStatus, OperationStatus

router = APIRouter()

Body = TypeVar("Body", bound=WireModel)
COMMAND_ERRORS = failures(*BODY_ERRORS, 403, 408, 409, 503)


class DrainRequest(WireModel):
    replica: str = Field(min_length=1, max_length=40)
    # Not strict: JSON has no enumerations.
    then: AfterDrain = Field(default=AfterDrain.RESTART, strict=False)


class NoFields(WireModel):
    """The body is `{}`: only JSON is accepted, which web pages of other origins cannot send."""


@router.get("/octavo/fleet", responses=failures(403))
async def status(request: Request) -> Response:
    """Return every replica, and the commands that are queued, running or have ended."""
    require_operator(request)
    return _answer(fleet_status(request.app.state.server), 200)


@router.post(
    "/octavo/fleet/drain", status_code=202, openapi_extra=json_body(DrainRequest), responses=COMMAND_ERRORS
)
async def drain(request: Request) -> Response:
    """Move the requests of a replica to others. Then end its engine, and start a new one unless it is
    removed."""
    body = await _command(request, DrainRequest)
    state: ServerState = request.app.state.server
    return _answer(state.operations.drain(body.replica, body.then), 202)


@router.post(
    "/octavo/fleet/add", status_code=202, openapi_extra=json_body(NoFields), responses=COMMAND_ERRORS
)
async def add(request: Request) -> Response:
    """Start one more replica."""
    await _command(request, NoFields)
    state: ServerState = request.app.state.server
    return _answer(state.operations.add(), 202)


@router.post(
    "/octavo/fleet/restart", status_code=202, openapi_extra=json_body(NoFields), responses=COMMAND_ERRORS
)
async def restart(request: Request) -> Response:
    """Restart all replicas, one after the other."""
    await _command(request, NoFields)
    state: ServerState = request.app.state.server
    return _answer(state.operations.restart(), 202)


def fleet_status(state: ServerState) -> FleetStatus:
    facts = state.replicas.facts
    return FleetStatus(
        model=state.model.name,
        version=octavo.__version__,
        fingerprint=None if facts is None else facts.system_fingerprint,
        requests=sum(map(len, state.replicas.hubs)),
        unsent=state.replicas.num_unplaced_requests,
        moves=state.replicas.num_moves,
        replicas=state.replicas.status(),
        operations=state.operations.status(),
    )


async def _command(request: Request, kind: type[Body]) -> Body:
    require_operator(request)
    state: ServerState = request.app.state.server
    body = await read_request(request, kind, state.options.max_body)
    state.check_ready()
    return body


def _answer(content: FleetStatus | OperationStatus, status_code: int) -> Response:
    return Response(msgspec.json.encode(content), status_code, media_type="application/json")
