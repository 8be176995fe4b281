"""GET /api/version, /api/tags and /api/ps, POST /api/show, and operations that this server does not have."""

import hashlib
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

import octavo
from octavo.protocol import SamplingParams
from octavo.server.http.body import read_request
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.sse import encode
from octavo.server.ollama.response import timestamp
from octavo.server.ollama.schema import OllamaBody, OllamaShow
from octavo.server.openapi import BODY_ERRORS, OLLAMA_TAG, failures, json_body
from octavo.server.state import ServerState
from octavo.text.fill_in_middle import FillInMiddle

router = APIRouter()

NEVER = "2999-12-31T23:59:59Z"  # when a model is unloaded
ARCHITECTURE = "octavo"  # in the names of `model_info`: clients look for `{architecture}.context_length`

NOT_MANAGED = {
    "pull": "the model is chosen when the server starts: octavo serve MODEL",
    "push": "it does not publish models",
    "create": "the model is chosen when the server starts: octavo serve MODEL",
    "copy": "start it with several names instead: --served-model-name NAME,NAME",
    "delete": "the model is chosen when the server starts: octavo serve MODEL",
    "embed": "its model generates text",
    "embeddings": "its model generates text",
}


@router.get("/api/version")
async def version() -> dict[str, Any]:
    return {"version": octavo.__version__}


@router.get("/api/tags")
async def tags(request: Request) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    return {"models": [_described(state, name) for name in state.names.names]}


@router.get("/api/ps")
async def running(request: Request) -> dict[str, Any]:
    """Return the same models, once the engine is ready."""
    state: ServerState = request.app.state.server
    facts = state.replicas.facts
    if facts is None:
        return {"models": []}
    size = sum(facts.weight_bytes.values()) + facts.kv_bytes
    more = {
        "size": size,
        "size_vram": 0 if facts.device == "cpu" else size,
        "expires_at": NEVER,
        "context_length": facts.max_model_len,
    }
    return {"models": [_described(state, name) | more for name in state.names.names]}


@router.post("/api/show", openapi_extra=json_body(OllamaShow), responses=failures(*BODY_ERRORS, 408))
async def show(request: Request) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    body = await read_request(request, OllamaShow, state.options.max_body)
    if body.model is None and body.name is None:
        raise invalid("model is missing", "model")
    for name in (body.model, body.name):
        state.check_model(name, tag=OLLAMA_TAG)
    facts, model, defaults = state.replicas.facts, state.model, state.model.defaults
    capabilities = ["completion", "tools"]
    if FillInMiddle.of_tokenizer(model.tokenizer) is not None:
        capabilities.append("insert")
    if model.dialect.has_reasoning:
        capabilities.append("thinking")
    parameters = {
        "temperature": defaults.temperature,
        "top_p": defaults.top_p,
        "top_k": defaults.top_k,
        "min_p": defaults.min_p,
        "repeat_penalty": defaults.repetition_penalty,
    }
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{key} {value}" for key, value in parameters.items()),
        "template": model.assets.chat_template or "",
        "details": _details(state),
        "model_info": {
            "general.architecture": ARCHITECTURE,
            **({} if facts is None else {f"{ARCHITECTURE}.context_length": facts.max_model_len}),
            f"{ARCHITECTURE}.vocab_size": model.tokenizer.vocab_size,
        },
        "capabilities": capabilities,
        "modified_at": timestamp(state.created),
    }


async def not_managed(request: Request) -> Response:
    path = request.url.path
    raise ApiError(404, f"this server does not have {path}: {NOT_MANAGED[path.rpartition('/')[2]]}")


for name in NOT_MANAGED:
    router.add_api_route(f"/api/{name}", not_managed, methods=["POST", "DELETE"], include_in_schema=False)


def loaded(state: ServerState, body: OllamaBody, params: SamplingParams, part: dict[str, Any]) -> Response:
    """Return the response to a request without a prompt, with which clients load a model."""
    state.pool.intake.check(params, priority=body.priority or 0, timeout=body.timeout)
    content = {
        "model": body.model or state.model.name,
        "created_at": timestamp(state.created),
        **part,
        "done": True,
        "done_reason": "load",
    }
    return Response(encode(content) + b"\n", media_type="application/json")


def _described(state: ServerState, name: str) -> dict[str, Any]:
    facts = state.replicas.facts
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(state.created),
        "size": 0 if facts is None else sum(facts.weight_bytes.values()),
        # Not of a file, but it changes if answers do.
        "digest": "" if facts is None else hashlib.sha256(facts.system_fingerprint.encode()).hexdigest(),
        "details": _details(state),
    }


def _details(state: ServerState) -> dict[str, Any]:
    facts = state.replicas.facts
    weights = {} if facts is None else facts.weight_bytes
    return {
        "parent_model": "",
        "format": "",
        "family": ARCHITECTURE,
        "families": [ARCHITECTURE],
        "parameter_size": "",
        "quantization_level": max(weights, key=lambda name: weights[name], default=""),
    }
