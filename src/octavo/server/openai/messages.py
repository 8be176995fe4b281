"""Convert messages of a request to messages for the chat template."""

from collections.abc import Sequence
from typing import Any

from octavo.frontend.conversation import tool_call
from octavo.server.http.errors import invalid, unsupported
from octavo.server.openai.schema import TEXT_PARTS, ContentPart, Message, TemplateFields


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def template_arguments(fields: TemplateFields) -> dict[str, Any]:
    """Return the other arguments of `ChatTemplate.render`."""
    kwargs = dict(fields.chat_template_kwargs or {})
    continues = bool(fields.continue_final_message)
    own = {
        "add_generation_prompt": fields.add_generation_prompt is not False,
        "continue_final_message": continues,
    }
    reserved = {"messages", "tools", *own} & set(kwargs)
    if reserved:
        raise invalid(f"chat_template_kwargs: {min(reserved)} has a field of its own", "chat_template_kwargs")
    if fields.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    if continues and fields.add_generation_prompt:
        raise invalid(
            "give either continue_final_message or add_generation_prompt, not both", "continue_final_message"
        )
    return kwargs | own


def _template_message(message: Message, where: str) -> dict[str, Any]:
    """Return the message without absent fields. `developer` becomes `system`, which templates know."""
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
        plain["tool_calls"] = [
            tool_call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
        ]
    elif message.content is None and message.refusal is None:
        raise invalid(f"{where}.content: a message without tool calls requires content", f"{where}.content")
    return plain


def _text(content: str | list[ContentPart] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in TEXT_PARTS:
            raise unsupported(f"{where}[{index}]", f"content of type {part.type[:40]!r}")
        if text is None:
            raise invalid(f"{where}[{index}]: the part has no text", f"{where}[{index}]")
        texts.append(text)
    return "".join(texts)
