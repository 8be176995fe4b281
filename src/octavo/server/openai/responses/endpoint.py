"""POST /v1/responses, and GET, DELETE, cancel and input_items of stored responses"""

from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.chat import ChatTask
from octavo.frontend.intake import FieldGrammar
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from octavo.server.chat_work import ChatWork
from octavo.server.http.body import read_request
from octavo.server.http.errors import ApiError, invalid, unsupported
from octavo.server.http.keys import caller
from octavo.server.http.paced import PacedResponse
from octavo.server.http.sse import PING, Framing, encode, error_event
from octavo.server.openai.messages import template_arguments
from octavo.server.openai.responses.answer import ResponsesAnswer
from octavo.server.openai.responses.asked import AskedResponse
from octavo.server.openai.responses.conversation import StoredConversation, owner_of
from octavo.server.openai.responses.items import RESPONSE_PREFIX, Item, input_items, messages
from octavo.server.openai.responses.schema import INCLUDABLE, ResponsesRequest
from octavo.server.openai.responses.tools import tool_box
from octavo.server.openai.schema import TemplateFields
from octavo.server.openapi import EVENTS, GENERATION_ERRORS, REPEATED, failures, json_body, query
from octavo.server.repeatable import respond_once
from octavo.server.state import ServerState
from octavo.server.stored_responses import StoredResponse

router = APIRouter()

# Of a request that repeats an Idempotency-Key. It sends the events of the first one, and comments as pings.
FOLLOWED = Framing(lambda: PING, error_event)
DEFAULT_LIMIT, MAX_LIMIT = 20, 100  # listed items

SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


@router.post(
    "/v1/responses",
    openapi_extra=json_body(ResponsesRequest) | {"parameters": REPEATED["parameters"][:1]},
    responses={200: EVENTS, **failures(*GENERATION_ERRORS)},
)
async def create_response(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_queue(caller(request))
    body = await read_request(request, ResponsesRequest, state.options.max_body)
    check_supported(body)
    state.check_model(body.model)
    asked = await _asked(request, body)
    work = ChatWork(chat_task(asked, state.model.defaults), ends_with_context=True)
    return await respond_once(
        request, body, work, partial(ResponsesAnswer, asked), prefix=RESPONSE_PREFIX, framing=FOLLOWED
    )


async def _asked(request: Request, body: ResponsesRequest) -> AskedResponse:
    tools, items = tool_box(body), input_items(body.input)
    stored = StoredConversation(request)
    earlier = await stored.earlier_items(body.previous_response_id)
    return AskedResponse(body, tools, earlier, await stored.resolved(items), owner_of(request))


# -- body to task ------------------------------------------------------------------------------------------


def check_supported(body: ResponsesRequest) -> None:
    """Reject unsupported fields instead of ignoring them."""
    if body.background:
        raise unsupported("background", "background")
    if body.truncation not in (None, "disabled"):
        raise unsupported("truncation", "truncation of the conversation")
    if body.context_management not in (None, []):
        raise unsupported("context_management", "context_management")
    for name in ("conversation", "prompt", "moderation"):
        if getattr(body, name) is not None:
            raise unsupported(name, name)
    for number, name in enumerate(body.include or ()):
        if name not in INCLUDABLE:
            raise unsupported(f"include[{number}]", f"{name[:40]!r}")
    if body.tools and (body.includes_logprobs or (body.top_logprobs and not body.shown.token_ids)):
        raise unsupported(
            "include" if body.includes_logprobs else "top_logprobs",
            "log-probabilities in messages with tools (octavo.token_ids shows them)",
        )
    if body.input is None and body.previous_response_id is None:
        raise invalid("input is missing", "input")


def chat_task(asked: AskedResponse, defaults: SamplingParams) -> ChatTask:
    body, grammar, functions = asked.body, requested_grammar(asked.body), asked.tools.functions
    params = sampling_params(body, defaults)
    return ChatTask(
        messages(body.instructions, asked.earlier, asked.given),
        params if grammar is None else msgspec.structs.replace(params, grammar=grammar.spec),
        grammar_field="text.format" if grammar is None else grammar.field,
        tools=list(functions.values()),
        tool_fields=list(functions),
        text_tools=asked.tools.text_tools,
        tool_choice=asked.tools.choice,
        allows_several_calls=body.parallel_tool_calls is not False,
        template=template_arguments(
            TemplateFields(
                chat_template_kwargs=body.chat_template_kwargs,
                continue_final_message=body.continue_final_message,
                reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
            )
        ),
    )


def sampling_params(body: ResponsesRequest, defaults: SamplingParams) -> SamplingParams:
    values = {name: getattr(body, name) for name in SAME_NAME} | {
        "top_k": 0 if body.top_k == -1 else body.top_k,
        "max_tokens": body.max_output_tokens,
        "stop": (body.stop,) if isinstance(body.stop, str) else body.stop and tuple(body.stop),
        "logprobs": (body.top_logprobs or 0) if body.has_logprobs else body.top_logprobs,
    }
    return msgspec.structs.replace(
        defaults, **{name: value for name, value in values.items() if value is not None}
    )


def requested_grammar(body: ResponsesRequest) -> FieldGrammar | None:
    """Return the grammar of `text.format`; None if any text is allowed."""
    form = None if body.text is None else body.text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return FieldGrammar("text.format", GrammarSpec(GrammarKind.JSON_OBJECT))
    field = "text.format.schema"
    if form.schema_ is None:
        raise invalid(f"{field} is missing", field)
    return FieldGrammar(field, schema_grammar(form.schema_, field))


# -- stored responses --------------------------------------------------------------------------------------


@router.get("/v1/responses/{response_id}", responses=failures(400, 404))
async def retrieve_response(request: Request, response_id: str) -> Response:
    if request.query_params.get("stream", "false") != "false":
        raise unsupported("stream", "the stream of a stored response")
    return PacedResponse((await _stored(request, response_id)).body)


@router.delete("/v1/responses/{response_id}", responses=failures(404))
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    state: ServerState = request.app.state.server
    if not await state.responses.delete(owner_of(request), response_id):
        raise _not_stored(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel", responses=failures(400, 404))
async def cancel_response(request: Request, response_id: str) -> Response:
    await _stored(request, response_id)
    raise invalid(
        "only a response with background true can be cancelled: to abort another one, close its connection"
    )


@router.get(
    "/v1/responses/{response_id}/input_items",
    openapi_extra=query(
        limit={"type": "integer", "minimum": 1, "maximum": MAX_LIMIT},
        order={"enum": ["asc", "desc"]},
        after={"type": "string"},
    ),
    responses=failures(400, 404),
)
async def list_input_items(request: Request, response_id: str) -> Response:
    """Return the input of this response only, without that of responses that it continues."""
    limit, order, after = _listing(request)
    stored = await _stored(request, response_id)
    items: list[Item] = msgspec.json.decode(stored.input_items)
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise invalid(f"after: the response has no input item {after[:100]!r}", "after")
        items = items[places[0] + 1 :]
    shown = items[:limit]
    return PacedResponse(
        encode(
            {
                "object": "list",
                "data": shown,
                "first_id": shown[0]["id"] if shown else None,
                "last_id": shown[-1]["id"] if shown else None,
                "has_more": len(items) > limit,
            }
        )
    )


def _listing(request: Request) -> tuple[int, str, str | None]:
    given = request.query_params
    limit, order = given.get("limit", str(DEFAULT_LIMIT)), given.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 1 <= int(limit) <= MAX_LIMIT):
        raise invalid(f"limit must be a whole number from 1 to {MAX_LIMIT}", "limit")
    if order not in ("asc", "desc"):
        raise invalid("order must be asc or desc", "order")
    return int(limit), order, given.get("after")


async def _stored(request: Request, response_id: str) -> StoredResponse:
    state: ServerState = request.app.state.server
    stored = await state.responses.get(owner_of(request), response_id)
    if stored is None:
        raise _not_stored(response_id)
    return stored


def _not_stored(response_id: str) -> ApiError:
    return ApiError(
        404,
        f"Response with id {response_id[:100]!r} not found: it was never stored, or it has been deleted or"
        " displaced by newer ones",
        code="response_not_found",
    )
