"""GET /metrics: for Prometheus. It asks for a key like any endpoint that is not a probe."""

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from octavo.server.state import ServerState

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    state: ServerState = request.app.state.server
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(state.registry), headers={"content-type": content_type})
