"""Liveness and readiness probes, and metrics for Prometheus."""

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import JSONResponse, Response

from octavo.server.http.keys import caller, is_operator
from octavo.server.state import ServerState

router = APIRouter()  # without a key: the probes reveal nothing about users
metrics_router = APIRouter()  # with a key, like the other endpoints


NOT_OK: dict[int | str, dict[str, Any]] = {503: {"description": "not live, or not ready"}}


@router.get("/livez", responses=NOT_OK)
async def livez(request: Request) -> JSONResponse:
    """Return 503 if the server cannot run steps and will not recover: restart it."""
    state: ServerState = request.app.state.server
    return _answer(state.replicas.is_live, {"status": "live" if state.replicas.is_live else "dead"})


@router.get("/readyz", responses=NOT_OK)
@router.get("/healthz", responses=NOT_OK)
@router.get("/health", responses=NOT_OK)
async def readyz(request: Request) -> JSONResponse:
    """Return 503 if the server is not ready: send requests elsewhere."""
    state: ServerState = request.app.state.server
    return _answer(state.is_ready and state.replicas.is_live, state.readiness)


def _answer(is_ok: bool, content: dict[str, Any]) -> JSONResponse:
    return JSONResponse(content, 200 if is_ok else 503, None if is_ok else {"retry-after": "1"})


@metrics_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return all metrics to an operator, and to another key only the usage of its name."""
    state: ServerState = request.app.state.server
    registry = state.registry if is_operator(request) else state.usage_registry(caller(request).name)
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(registry), headers={"content-type": content_type})
