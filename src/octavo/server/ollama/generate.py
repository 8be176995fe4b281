"""POST /api/generate"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.chat import ChatTask
from octavo.frontend.text_model import TextModel
from octavo.server.chat_work import ChatWork
from octavo.server.generation import Work
from octavo.server.http.body import read_request
from octavo.server.http.errors import unsupported
from octavo.server.http.keys import caller
from octavo.server.ollama.models import loaded
from octavo.server.ollama.params import requested_grammar, sampling_params, template_arguments
from octavo.server.ollama.response import LINES, OllamaAnswer
from octavo.server.ollama.schema import OllamaCompletion
from octavo.server.openapi import GENERATION_ERRORS, LINES_OF_JSON, OLLAMA_TAG, failures, json_body
from octavo.server.repeatable import respond_once
from octavo.server.state import ServerState
from octavo.server.text_work import TextWork

router = APIRouter()


@router.post(
    "/api/generate",
    openapi_extra=json_body(OllamaCompletion),
    responses={200: LINES_OF_JSON, **failures(*GENERATION_ERRORS)},
)
async def generate(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_queue(caller(request))
    body = await read_request(request, OllamaCompletion, state.options.max_body)
    check_supported(body)
    state.check_model(body.model, tag=OLLAMA_TAG)
    work = prompt_work(body, state.model)
    if not body.prompt and not body.suffix:
        return loaded(state, body, work.params, response("", None, []))
    writer = partial(OllamaAnswer, body, response)
    return await respond_once(request, body, work, writer, prefix="ollama-", framing=LINES)


def check_supported(body: OllamaCompletion) -> None:
    for name in ("template", "context", "images"):
        if getattr(body, name):
            raise unsupported(name, name)
    for name in ("width", "height", "steps"):
        if getattr(body, name) is not None:
            raise unsupported(name, f"{name} of an image")
    if body.raw and body.suffix:
        raise unsupported("suffix", "suffix with raw")
    for name in ("system", "think"):
        if getattr(body, name) and (body.raw or body.suffix):
            raise unsupported(name, f"{name} with raw or suffix, which do not use the chat template,")


def prompt_work(body: OllamaCompletion, model: TextModel) -> Work:
    params, prompt = sampling_params(body, model.defaults), body.prompt or ""
    if body.raw or body.suffix:
        grammar = requested_grammar(body)
        grammars = () if grammar is None else (grammar,)
        work = TextWork([prompt], params, grammars=grammars, ends_with_context=True)
        return work.before(body.suffix, model.tokenizer) if body.suffix else work
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": prompt})
    template = template_arguments(body)
    return ChatWork(
        ChatTask(messages, params, grammar_field="format", template=template), ends_with_context=True
    )


def response(text: str, thinking: str | None, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the text. There are no tools, and so no calls."""
    return {"response": text} | ({} if thinking is None else {"thinking": thinking})
