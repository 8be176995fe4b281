"""For machines that watch the server: is it alive, is it ready, and what Prometheus reads."""

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import JSONResponse, Response

from octavo.server.state import ServerState

router = APIRouter()  # the only endpoints that ask for no key: they tell nothing about anybody
metrics_router = APIRouter()  # asks for a key like any other endpoint


NOT_WELL: dict[int | str, dict[str, Any]] = {503: {"description": "not now"}}


@router.get("/livez", responses=NOT_WELL)
async def livez(request: Request) -> JSONResponse:
    """Not live: no step can run and none will. Restart me."""
    state: ServerState = request.app.state.server
    return _answer(state.supervisor.is_live, {"status": "live" if state.supervisor.is_live else "dead"})


@router.get("/readyz", responses=NOT_WELL)
@router.get("/healthz", responses=NOT_WELL)
@router.get("/health", responses=NOT_WELL)
async def readyz(request: Request) -> JSONResponse:
    """Not ready: send requests elsewhere."""
    state: ServerState = request.app.state.server
    return _answer(state.is_ready and state.supervisor.is_live, state.readiness)


def _answer(is_well: bool, content: dict[str, Any]) -> JSONResponse:
    return JSONResponse(content, 200 if is_well else 503, None if is_well else {"retry-after": "1"})


@metrics_router.get("/metrics")
async def metrics(request: Request) -> Response:
    state: ServerState = request.app.state.server
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(state.registry), headers={"content-type": content_type})
