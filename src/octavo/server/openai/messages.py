"""Messages as clients write them to messages as chat templates read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.server.http.errors import invalid, unsupported
from octavo.server.openai.schema import TEXT_PARTS, ContentPart, Message, TemplateFields, ToolCall
from octavo.server.state import LONG_TEXT

TURN_CHARS = 64  # a message costs a template as much as so many characters cost a tokenizer


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def template_arguments(fields: TemplateFields) -> dict[str, Any]:
    """What else `ChatTemplate.render` is told."""
    kwargs = dict(fields.chat_template_kwargs or {})
    continues = bool(fields.continue_final_message)
    own = {
        "add_generation_prompt": fields.add_generation_prompt is not False,
        "continue_final_message": continues,
    }
    reserved = {"messages", "tools", *own} & set(kwargs)
    if reserved:
        raise invalid(f"chat_template_kwargs: {min(reserved)} is set otherwise", "chat_template_kwargs")
    if fields.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    if continues and fields.add_generation_prompt:
        raise invalid(
            "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
        )
    return kwargs | own


def num_chars(messages: Sequence[Mapping[str, Any]], fields: TemplateFields, *, has_tools: bool) -> int:
    """How much text a template has to do with. Variables and calls of tools can be of any size; other
    messages are their texts, and a turn of a loop."""
    has_variables = bool(fields.chat_template_kwargs) or fields.reasoning_effort is not None
    if has_variables or has_tools or any("tool_calls" in message for message in messages):
        return LONG_TEXT
    return sum(TURN_CHARS + sum(map(len, message.values())) for message in messages)


def _template_message(message: Message, where: str) -> dict[str, Any]:
    """Only what was said. Templates know no developer."""
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{where}.content"),
    }
    for name in ("name", "reasoning_content", "reasoning", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    if message.refusal is not None and not plain["content"]:
        plain["content"] = message.refusal
    if message.tool_calls:
        plain["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    elif message.content is None and message.refusal is None:
        raise invalid(f"{where}.content: a message without tool calls needs a content", f"{where}.content")
    return plain


def _text(content: str | list[ContentPart] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in TEXT_PARTS:
            raise unsupported(f"{where}[{index}]", f"content of the type {part.type[:40]!r}")
        if text is None:
            raise invalid(f"{where}[{index}]: the part has no text", f"{where}[{index}]")
        texts.append(text)
    return "".join(texts)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {
        **({} if call.id is None else {"id": call.id}),
        "type": "function",
        "function": {"name": call.function.name, "arguments": call.function.arguments},
    }
