"""The model and its tokenizer: GET /v1/models, POST /tokenize and /detokenize, GET /tokenizer_info"""

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.chat import ChatTask
from octavo.prompting.jobs import DecodedText, DecodeJob, EncodedTokens, TokensJob
from octavo.protocol import SamplingParams
from octavo.server.http.body import read_request
from octavo.server.http.disconnect import while_connected
from octavo.server.http.errors import invalid
from octavo.server.http.keys import caller
from octavo.server.http.paced import PacedResponse
from octavo.server.http.sse import encode
from octavo.server.openai.messages import template_arguments, template_messages
from octavo.server.openai.schema import DetokenizeRequest, TokenizeRequest
from octavo.server.openapi import BODY_ERRORS, failures, json_body
from octavo.server.state import ServerState

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    return {"object": "list", "data": [_described(state, name) for name in state.names.names]}


@router.get("/v1/models/{model_id:path}", responses=failures(404))
async def model(request: Request, model_id: str) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    state.check_model(model_id)
    return _described(state, model_id)


def _described(state: ServerState, name: str) -> dict[str, Any]:
    facts = state.replicas.facts
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "octavo",
        "max_model_len": None if facts is None else facts.max_model_len,
    }


@router.post("/tokenize", openapi_extra=json_body(TokenizeRequest), responses=failures(*BODY_ERRORS, 408))
async def tokenize(request: Request) -> Response:
    state: ServerState = request.app.state.server
    body = await read_request(request, TokenizeRequest, state.options.max_body)
    state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    facts = state.replicas.facts
    result = await while_connected(request.receive, state.prompter.run(caller(request), _job(body)))
    assert isinstance(result, EncodedTokens)
    content = {
        "count": result.count,
        "max_model_len": None if facts is None else facts.max_model_len,
        "tokens": msgspec.Raw(result.ids),
        "token_strs": None if result.texts is None else msgspec.Raw(result.texts),
    }
    return _respond(request, encode(content))


def _job(body: TokenizeRequest) -> TokensJob:
    with_texts = bool(body.return_token_strs)
    if body.messages is None:
        return TokensJob(body.prompt or "", None, body.add_special_tokens is not False, with_texts)
    chat = ChatTask(template_messages(body.messages), SamplingParams(), template=template_arguments(body))
    return TokensJob("", chat, bool(body.add_special_tokens), with_texts)


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest), responses=failures(*BODY_ERRORS, 408))
async def detokenize(request: Request) -> Response:
    state: ServerState = request.app.state.server
    body = await read_request(request, DetokenizeRequest, state.options.max_body)
    state.check_model(body.model)
    job = DecodeJob(tuple(body.tokens))
    result = await while_connected(request.receive, state.prompter.run(caller(request), job))
    assert isinstance(result, DecodedText)
    return _respond(request, encode({"prompt": result.text}))


def _respond(request: Request, answer: bytes) -> Response:
    request.state.holding.take(len(answer))
    return PacedResponse(answer)


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    assets, tokenizer = state.model.assets, state.model.tokenizer
    facts = state.replicas.facts
    return {
        "tokenizer_class": "tokenizers",
        "vocab_size": tokenizer.vocab_size,
        "max_model_len": None if facts is None else facts.max_model_len,
        "bos_token": assets.bos_token,
        "eos_token": assets.eos_token,
        "pad_token": assets.pad_token,
        "unk_token": assets.unk_token,
        "eos_token_ids": tokenizer.eos_ids,
        "chat_template": assets.chat_template,
    }
