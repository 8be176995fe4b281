"""Chats, for all callers: `LLM`, the command line and the server's endpoints.

    messages, tools, format, parameters --compose--> prompt, grammar, answer format
    text, reasoning, calls              <------------ `output`, which reads the answer in that format

No wire format here: an endpoint converts its body into a `ChatTask`, and parts of the answer into its format.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.dialect.choose import reasons_after
from octavo.dialect.plain_text import in_plain_words, with_text_calls
from octavo.dialect.reader import AnswerFormat
from octavo.dialect.reasoning import CLOSE, Reasons
from octavo.dialect.tools import parse_tools
from octavo.errors import RequestError, TemplateError
from octavo.frontend.answer_grammar import answer_grammars
from octavo.frontend.conversation import with_system_first
from octavo.frontend.intake import FieldGrammar, PromptTask
from octavo.frontend.text_model import TextModel
from octavo.frontend.tool_use import OnlyTool, TextTool, Tool, ToolChoice, ToolUse, tool_use
from octavo.protocol import SamplingParams

Message = Mapping[str, Any]  # in the form that chat templates read


@dataclass(frozen=True)
class ChatTask:
    """A chat to answer."""

    messages: Sequence[Message]
    params: SamplingParams  # an answer without calls conforms to its grammar
    grammar_field: str = "grammar"  # the caller's name for the field of the grammar, for error messages
    tools: Sequence[Tool] = ()
    tool_fields: Sequence[str] = ()  # the caller's names for the fields of their schemas (none: as in a chat)
    text_tools: Sequence[TextTool] = ()
    tool_choice: ToolChoice | OnlyTool = ToolChoice.AUTO
    allows_several_calls: bool = True
    template: Mapping[str, Any] = field(default_factory=dict)  # arguments of `ChatTemplate.render`


def compose(task: ChatTask, model: TextModel) -> PromptTask:
    """Return the chat as a prompt. Raises TemplateError, or RequestError with the field that caused it."""
    grammar = task.params.grammar
    requested = None if grammar is None else FieldGrammar(task.grammar_field, grammar)
    use = tool_use(
        task.tools,
        task.text_tools,
        task.tool_choice,
        allows_several=task.allows_several_calls,
        family=model.dialect.family,
        has_format=requested is not None,
        fields=task.tool_fields,
    )
    prompt = render(task.messages, use, model, task.template)
    reasons = reasons_after(prompt, model.dialect)
    if use.lead:  # the answer begins with a call, so reasoning that the template opened must be closed
        prompt += (CLOSE if reasons is Reasons.BEGUN else "") + use.lead
        reasons = Reasons.NEVER
    spec, to_check = answer_grammars(requested, use, reasons)
    return PromptTask(
        prompt,
        task.params if spec == grammar else msgspec.structs.replace(task.params, grammar=spec),
        add_special_tokens=False,  # the template contains them
        format=_answer_format(use, reasons, model),
        grammars=tuple(to_check),
    )


def render(messages: Sequence[Message], use: ToolUse, model: TextModel, template: Mapping[str, Any]) -> str:
    """Return the prompt, rendered with the checkpoint's own template."""
    plain: Sequence[Message] = [
        _with_decoded_calls(message, f"messages[{i}]") for i, message in enumerate(messages)
    ]
    tools, text_tools = use.shown or None, {tool.name for tool in use.text_tools}
    # The format of the calls may not be that of the template.
    has_own_calls = model.dialect.renders_tools and use.family == model.dialect.family
    if use.tools and (text_tools or not has_own_calls):
        plain = [_with_plain_content(message, f"messages[{i}]") for i, message in enumerate(plain)]
        if has_own_calls:
            plain = with_text_calls(plain, text_tools)
        else:
            plain, tools = in_plain_words(plain, use.shown, use.family, text_tools), None
    try:
        return model.template.render(plain, tools=tools, **template)
    except TemplateError:
        # Many templates allow a system message only at the beginning, but agents also send later ones.
        adapted = with_system_first(plain)
        if adapted is None:
            raise
        return model.template.render(adapted, tools=tools, **template)


def _with_decoded_calls(message: Message, where: str) -> Message:
    """Return the message with the arguments of its calls as objects, and its content as a string.

    Templates expect this form. Models and clients write arguments as JSON text, and None for no content.
    """
    if not isinstance(message, Mapping) or not message.get("tool_calls"):
        return message
    if not isinstance(message["tool_calls"], list | tuple):
        raise RequestError(f"{where}.tool_calls must be a list", f"{where}.tool_calls")
    calls = [
        _with_decoded_arguments(call, f"{where}.tool_calls[{i}]")
        for i, call in enumerate(message["tool_calls"])
    ]
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


def _with_decoded_arguments(call: Any, where: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments", ""), str | None):
        return call
    try:
        arguments = msgspec.json.decode(function.get("arguments") or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        field = f"{where}.function.arguments"
        raise RequestError(f"{field}: the arguments are not valid JSON", field) from error
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _with_plain_content(message: Message, where: str) -> Message:
    """Check role, content and calls of a message, and return it with its content as one string.

    Only for messages that are rewritten before the template sees them.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where}: a message must be a mapping with `role` and `content`", where)
    for i, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            field = f"{where}.tool_calls[{i}]"
            raise RequestError(
                f'{field}: a call must have the form {{"function": {{"name": ..., "arguments": ...}}}}', field
            )
    content = message.get("content")
    if isinstance(content, list | tuple):
        texts = [part["text"] for part in content if isinstance(part, Mapping) and "text" in part]
        if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
            raise RequestError(f"{where}.content: with tools, content must be text", f"{where}.content")
        content = "".join(texts)
    return {**message, "content": content or ""}


def _answer_format(use: ToolUse, reasons: Reasons, model: TextModel) -> AnswerFormat | None:
    """Return the format of the answer; None if it is plain text."""
    if not use.tools:
        return None if reasons is Reasons.NEVER else AnswerFormat(reasons)
    marker_ids = [model.tokenizer.token_id(marker) for marker in model.dialect.markers]
    return AnswerFormat(
        reasons,
        use.answer_family,
        msgspec.structs.replace(
            parse_tools(use.shown),
            text_tools=tuple(tool.name for tool in use.text_tools),
            may_be_bare=use.is_strict,
        ),
        max_calls=use.max_calls,
        marker_ids=tuple([token_id for token_id in marker_ids if token_id is not None]),
        call_id_length=model.dialect.call_id_length,
        lead=use.lead,
    )
