"""Is it alive, is it ready? The only endpoints that ask for no key; they tell nothing about anybody."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from octavo.server.state import ServerState

router = APIRouter()


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
