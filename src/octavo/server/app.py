"""The ASGI application: routes, exception handlers and middleware."""

import asyncio
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import octavo
from octavo.errors import OctavoError
from octavo.server.anthropic import messages
from octavo.server.anthropic import models as anthropic_models
from octavo.server.error_responses import respond_with
from octavo.server.http.errors import ApiError, as_api_error
from octavo.server.http.hosts import Hosts
from octavo.server.http.keys import Keys, require_key
from octavo.server.middleware import Boundary
from octavo.server.ollama import chat as ollama_chat
from octavo.server.ollama import generate as ollama_generate
from octavo.server.ollama import models as ollama_models
from octavo.server.openai import chat, completions, models
from octavo.server.openai.responses import endpoint as responses
from octavo.server.openapi import anthropic_failures, describe, failures
from octavo.server.operate import fleet, probes, view
from octavo.server.operate.page import page_router, root_router
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
        # Newer FastAPI versions export spans and tracebacks if an environment variable asks for it; older
        # ones ignore this argument.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.server = state
    app.state.keys = keys
    if keys.is_required:
        state.key_usage = keys.accounts.usage
    app.include_router(probes.router, responses=failures(421))
    app.include_router(page_router() if state.options.page else root_router(), responses=failures(421))
    # Default deny: every endpoint but the probes and the page is added here and requires the key.
    app.include_router(
        messages.router,
        dependencies=[Depends(require_key)],
        responses=anthropic_failures(401, 421, 429, 500),
    )
    # Before the router of OpenAI's API, which has the same paths and answers all other clients.
    app.include_router(anthropic_models.router, dependencies=[Depends(require_key)])
    routers = (chat.router, completions.router, responses.router, models.router, probes.metrics_router)
    ollama_routers = (ollama_chat.router, ollama_generate.router, ollama_models.router)
    for router in (*routers, *ollama_routers, view.router, fleet.router, schema_router(app)):
        app.include_router(
            router, dependencies=[Depends(require_key)], responses=failures(401, 421, 429, 500)
        )
    app.add_exception_handler(OctavoError, _handle_octavo_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    if state.options.cors_origins is not None:
        origins = [origin.strip() for origin in state.options.cors_origins.split(",")]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Boundary, state=state, keys=keys, hosts=Hosts.from_options(state.options))
    return app


def schema_router(app: FastAPI) -> APIRouter:
    """Return the router of the OpenAPI document, which requires the key like the API itself."""
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        # FastAPI caches the document but takes 0.2 s to build it: not on the event loop.
        await asyncio.to_thread(app.openapi)
        return describe(app, app.state.server)

    return router


async def _handle_octavo_error(request: Request, error: Exception) -> Response:
    return _answer(request, as_api_error(error, record_of(request).request_id))


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer errors that Starlette raises: unknown route, wrong method."""
    assert isinstance(error, HTTPException)
    messages = {404: "there is no such endpoint", 405: "this endpoint does not support that method"}
    message = messages.get(error.status_code, "the request cannot be answered")
    return _answer(request, ApiError(error.status_code, message, headers=dict(error.headers or {})))


def _answer(request: Request, error: ApiError) -> Response:
    return respond_with(error, request.scope, record_of(request))
