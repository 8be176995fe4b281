"""The model and its tokenizer: GET /v1/models, POST /tokenize and /detokenize, GET /tokenizer_info"""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.chat import render
from octavo.frontend.tool_use import ToolUse
from octavo.server.http.body import read_request
from octavo.server.http.errors import invalid
from octavo.server.http.sse import encode
from octavo.server.openai.messages import num_chars, template_arguments, template_messages
from octavo.server.openai.schema import DetokenizeRequest, TokenizeRequest
from octavo.server.openapi import BODY_ERRORS, failures, json_body
from octavo.server.state import ServerState
from octavo.text.tokenizer import Tokenizer

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


@router.post("/tokenize", openapi_extra=json_body(TokenizeRequest), responses=failures(*BODY_ERRORS, 408))
async def tokenize(request: Request) -> Response:
    state: ServerState = request.app.state.server
    body = await read_request(request, TokenizeRequest, state.options.max_body)
    state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    if body.messages is not None:
        messages, arguments = template_messages(body.messages), template_arguments(body)
        size = num_chars(messages, body, has_tools=False)
        text = await state.in_thread(size, render, messages, ToolUse(), state.model, arguments)
        adds = bool(body.add_special_tokens)
    else:
        text, adds = body.prompt or "", body.add_special_tokens is not False
    facts = state.supervisor.facts

    def answer() -> bytes:
        tokenizer = state.model.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=adds)
        content = {
            "count": len(ids),
            "max_model_len": None if facts is None else facts.max_model_len,
            "tokens": ids,
            "token_strs": [tokenizer.token_text(i) for i in ids] if body.return_token_strs else None,
        }
        return encode(content)

    # The whole answer, since it may be longer than the text: nothing of it is left to the event loop.
    return Response(await state.in_thread(len(text), answer), media_type="application/json")


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest), responses=failures(*BODY_ERRORS, 408))
async def detokenize(request: Request) -> Response:
    state: ServerState = request.app.state.server
    body = await read_request(request, DetokenizeRequest, state.options.max_body)
    state.check_model(body.model)
    answer = await state.in_thread(len(body.tokens), _detokenized, state.model.tokenizer, body.tokens)
    return Response(answer, media_type="application/json")


def _detokenized(tokenizer: Tokenizer, token_ids: list[int]) -> bytes:
    if any(not 0 <= token_id < tokenizer.vocab_size for token_id in token_ids):
        raise invalid(f"tokens: ids are whole numbers from 0 to {tokenizer.vocab_size - 1}", "tokens")
    return encode({"prompt": tokenizer.decode(token_ids, skip_special_tokens=False)})


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    assets, tokenizer = state.model.assets, state.model.tokenizer
    facts = state.supervisor.facts
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
