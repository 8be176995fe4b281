"""GET /v1/models and /v1/models/{id}"""

from typing import Any

from fastapi import APIRouter, Request

from octavo.server.openapi import failures
from octavo.server.state import ServerState

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_described(request.app.state.server)]}


@router.get("/v1/models/{model_id:path}", responses=failures(404))
async def model(request: Request, model_id: str) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    state.check_model(model_id)
    return _described(state)


def _described(state: ServerState) -> dict[str, Any]:
    facts = state.supervisor.facts
    return {
        "id": state.model.name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "max_model_len": None if facts is None else facts.max_model_len,
    }
