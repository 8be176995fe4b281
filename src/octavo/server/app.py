"""The application: who answers what, and what stands before it."""

import asyncio
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import octavo
from octavo.errors import OctavoError
from octavo.server.http.errors import ApiError, as_api_error, error_response
from octavo.server.http.hosts import Hosts
from octavo.server.http.keys import Keys, require_key
from octavo.server.middleware import Boundary
from octavo.server.openai import chat, completions, models
from octavo.server.openapi import describe, failures
from octavo.server.operate import probes, view
from octavo.server.operate.page import page_router
from octavo.server.operate.record import record_of
from octavo.server.state import ServerState


def build_app(state: ServerState, keys: Keys) -> FastAPI:
    app = FastAPI(
        title="octavo",
        version=octavo.__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Newer FastAPIs would send spans and tracebacks where a variable says; older ones take no notice.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.server = state
    app.state.keys = keys
    app.include_router(probes.router, responses=failures(421))
    if state.options.page:
        app.include_router(page_router(), responses=failures(421))
    # Default deny: whatever is neither a probe nor the page goes in here, behind the key.
    routers = (chat.router, completions.router, models.router, probes.metrics_router, view.router)
    for router in (*routers, schema_router(app)):
        app.include_router(router, dependencies=[Depends(require_key)], responses=failures(401, 421, 500))
    app.add_exception_handler(OctavoError, _of_octavo)
    app.add_exception_handler(HTTPException, _of_http)
    if state.options.cors_origins is not None:
        origins = [origin.strip() for origin in state.options.cors_origins.split(",")]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Boundary, state=state, hosts=Hosts.from_options(state.options))
    return app


def schema_router(app: FastAPI) -> APIRouter:
    """The description of the API, for those who may use it."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        # FastAPI keeps it, but needs a fifth of a second for the first: others are answered meanwhile.
        await asyncio.to_thread(app.openapi)
        return describe(app, app.state.server)

    return router


async def _of_octavo(request: Request, error: Exception) -> Response:
    return _answer(request, as_api_error(error, record_of(request).request_id))


async def _of_http(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    words = {404: "there is no such endpoint", 405: "this endpoint does not take that method"}
    message = words.get(error.status_code, "the request cannot be answered")
    return _answer(request, ApiError(error.status_code, message, headers=dict(error.headers or {})))


def _answer(request: Request, error: ApiError) -> Response:
    record_of(request).note_error(error)
    return error_response(error)
