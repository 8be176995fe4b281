"""POST /v1/messages and /v1/messages/count_tokens"""

from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.chat import ChatTask
from octavo.frontend.intake import FieldGrammar
from octavo.frontend.tool_use import OnlyTool, ToolChoice
from octavo.prompting.jobs import EncodedTokens, TokensJob
from octavo.protocol import SamplingParams
from octavo.server.anthropic.answer import MessagesAnswer
from octavo.server.anthropic.client_nonces import HEADER, dropped_header
from octavo.server.anthropic.conversation import TemplatePrompt, template_prompt
from octavo.server.anthropic.errors import MESSAGES, NO_THREADS, error_event
from octavo.server.anthropic.schema import (
    OWN_TOOL,
    CountTokensRequest,
    MessagesRequest,
    MessagesTool,
    PromptBody,
)
from octavo.server.chat_work import ChatWork
from octavo.server.http.body import read_request
from octavo.server.http.disconnect import while_connected
from octavo.server.http.errors import ApiError, invalid, unsupported
from octavo.server.http.keys import caller
from octavo.server.http.paced import PacedResponse
from octavo.server.http.sse import Framing, encode, named_event
from octavo.server.openapi import (
    ANTHROPIC_BODY_ERRORS,
    ANTHROPIC_GENERATION_ERRORS,
    EVENTS,
    IDEMPOTENCY,
    anthropic_failures,
    json_body,
)
from octavo.server.operate.record import record_of
from octavo.server.repeatable import respond_once
from octavo.server.state import ServerState

PING = named_event("ping", {"type": "ping"})
DROPPED = {HEADER: {"description": "how many system blocks were dropped", "schema": {"type": "integer"}}}

router = APIRouter()


@router.post(
    MESSAGES,
    openapi_extra=json_body(MessagesRequest) | IDEMPOTENCY,
    responses={200: EVENTS | {"headers": DROPPED}, **anthropic_failures(*ANTHROPIC_GENERATION_ERRORS)},
)
async def messages(request: Request) -> Response:
    state: ServerState = request.app.state.server
    state.check_ready()
    state.admission.check_queue(caller(request))
    body = await read_request(request, MessagesRequest, state.options.max_body)
    check_supported(body)
    state.check_model(body.model)
    prompt = template_prompt(body)
    work = ChatWork(message_task(body, prompt, state.model.defaults), ends_with_context=True)
    own = framing(request)
    return await respond_once(
        request,
        body,
        work,
        partial(MessagesAnswer, body, own),
        prefix="msg_",
        framing=own,
        headers=dropped_header(prompt.num_dropped),
    )


@router.post(
    f"{MESSAGES}/count_tokens",
    openapi_extra=json_body(CountTokensRequest),
    responses=anthropic_failures(*ANTHROPIC_BODY_ERRORS, 408),
)
async def count_tokens(request: Request) -> Response:
    """Return the number of tokens that the prompt of the same request to /v1/messages has."""
    state: ServerState = request.app.state.server
    body = await read_request(request, CountTokensRequest, state.options.max_body)
    check_supported(body)
    state.check_model(body.model)
    prompt = template_prompt(body)
    job = TokensJob("", _task(body, prompt, SamplingParams()), add_special_tokens=False, with_texts=False)
    result = await while_connected(request.receive, state.prompter.run(caller(request), job))
    assert isinstance(result, EncodedTokens)
    answer = encode({"input_tokens": result.count})
    request.state.holding.take(len(answer))
    return PacedResponse(answer, headers=dropped_header(prompt.num_dropped))


def framing(request: Request) -> Framing:
    request_id = record_of(request).request_id
    return Framing(lambda: PING, lambda error: error_event(error, request_id))


def check_supported(body: PromptBody) -> None:
    """Reject unsupported fields instead of ignoring them. Empty ones ask for nothing."""
    if body.thread not in (None, [], {}, ""):
        message = "thread is not supported by this server: send the whole conversation in messages"
        raise ApiError(400, message, param="thread", code=NO_THREADS)
    for name in ("mcp_servers", "container", "compaction"):
        if getattr(body, name) not in (None, [], {}, ""):
            raise unsupported(name, name)


def message_task(body: MessagesRequest, prompt: TemplatePrompt, defaults: SamplingParams) -> ChatTask:
    grammar = _requested_grammar(body)
    params = _params(body, defaults)
    if grammar is None:
        return _task(body, prompt, params)
    params = msgspec.structs.replace(params, grammar=grammar.spec)
    return _task(body, prompt, params, grammar_field=grammar.field)


def _task(
    body: PromptBody, prompt: TemplatePrompt, params: SamplingParams, grammar_field: str = "grammar"
) -> ChatTask:
    choice, has_several = _tool_choice(body)
    return ChatTask(
        prompt.messages,
        params,
        grammar_field=grammar_field,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())],
        tool_choice=choice,
        allows_several_calls=has_several,
        template=_template_arguments(body, continues=prompt.continues),
    )


def _params(body: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    """Return the parameters. The checkpoint's recommended ones are the defaults."""
    if body.top_logprobs is not None and not body.shown.token_ids:
        raise invalid("top_logprobs requires octavo: {token_ids: true}, which shows them", "top_logprobs")
    given = {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": 0 if body.top_k == -1 else body.top_k,
        "min_p": body.min_p,
        "stop": None if body.stop_sequences is None else tuple(body.stop_sequences),
        "seed": body.seed,
        "logprobs": body.top_logprobs,
    }
    return msgspec.structs.replace(
        defaults, **{name: value for name, value in given.items() if value is not None}
    )


def _requested_grammar(body: PromptBody) -> FieldGrammar | None:
    param, found = "output_config.format", None if body.output_config is None else body.output_config.format
    if body.output_format is not None:
        if found is not None:
            raise invalid("give either output_config.format or output_format, not both", "output_format")
        param, found = "output_format", body.output_format
    if found is None:
        return None
    return FieldGrammar(f"{param}.schema", schema_grammar(found.schema_, f"{param}.schema"))


def _tool(tool: MessagesTool, where: str) -> dict[str, Any]:
    if tool.type not in (None, OWN_TOOL):
        raise unsupported(
            f"{where}.type", f"the tool type {tool.type[:60]!r}, which Anthropic's servers run,"
        )
    if tool.name is None:
        raise invalid(f"{where}.name is missing", f"{where}.name")
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }


def _tool_choice(body: PromptBody) -> tuple[ToolChoice | OnlyTool, bool]:
    """Return the choice, and whether an answer may have several calls."""
    choice = body.tool_choice
    if choice is None:
        return ToolChoice.AUTO, True
    has_several = not choice.disable_parallel_tool_use
    match choice.type:
        case "tool":
            if choice.name is None:
                raise invalid("tool_choice.name is missing", "tool_choice.name")
            return OnlyTool(choice.name), has_several
        case "any":
            return ToolChoice.REQUIRED, has_several
        case _:
            return ToolChoice(choice.type), has_several


def _template_arguments(body: PromptBody, *, continues: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
    }
    if body.thinking is not None:
        arguments["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and body.output_config.effort is not None:
        arguments["reasoning_effort"] = body.output_config.effort
    return arguments
