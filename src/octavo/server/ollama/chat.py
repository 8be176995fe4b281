"""POST /api/chat"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.chat import ChatTask
from octavo.frontend.text_model import TextModel
from octavo.server.chat_work import ChatWork
from octavo.server.http.body import read_request
from octavo.server.http.keys import caller
from octavo.server.ollama.messages import template_messages
from octavo.server.ollama.models import loaded
from octavo.server.ollama.params import sampling_params, template_arguments
from octavo.server.ollama.response import LINES, OllamaAnswer
from octavo.server.ollama.schema import OllamaChat
from octavo.server.openapi import GENERATION_ERRORS, LINES_OF_JSON, OLLAMA_TAG, failures, json_body
from octavo.server.repeatable import respond_once
from octavo.server.state import ServerState

router = APIRouter()


@router.post(
    "/api/chat",
    openapi_extra=json_body(OllamaChat),
    responses={200: LINES_OF_JSON, **failures(*GENERATION_ERRORS)},
)
async def chat(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_queue(caller(request))
    body = await read_request(request, OllamaChat, state.options.max_body)
    state.check_model(body.model, tag=OLLAMA_TAG)
    work = ChatWork(chat_task(body, state.model), ends_with_context=True)
    if not body.messages:
        return loaded(state, body, work.params, message("", None, []))
    writer = partial(OllamaAnswer, body, message)
    return await respond_once(request, body, work, writer, prefix="ollama-", framing=LINES)


def chat_task(body: OllamaChat, model: TextModel) -> ChatTask:
    return ChatTask(
        template_messages(body.messages or (), model.dialect.call_id_length),
        sampling_params(body, model.defaults),
        grammar_field="format",
        tools=[tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        template=template_arguments(body),
    )


def message(text: str, thinking: str | None, calls: list[dict[str, Any]]) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking is not None:
        shown["thinking"] = thinking
    if calls:
        shown["tool_calls"] = calls
    return {"message": shown}
