"""Messages as clients write them to messages as chat templates read them, and those to a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from octavo.dialect.told import in_plain_words
from octavo.server.http.errors import invalid, unsupported
from octavo.server.openai.schema import TEXT_PARTS, ContentPart, Message, TemplateFields, ToolCall
from octavo.server.state import LONG_TEXT, ServerState

TURN_CHARS = 64  # a message costs a template as much as so many characters cost a tokenizer


async def render(
    state: ServerState,
    messages: Sequence[Message],
    fields: TemplateFields,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The prompt, by the checkpoint's own template; long conversations are rendered beside the event loop."""
    plain = [template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    kwargs = dict(fields.chat_template_kwargs or {})
    reserved = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & set(kwargs)
    if reserved:
        raise invalid(f"chat_template_kwargs: {min(reserved)} is set otherwise", "chat_template_kwargs")
    if fields.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", fields.reasoning_effort)
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise invalid(
            "continue_final_message and add_generation_prompt exclude each other", "continue_final_message"
        )

    dialect = state.model.dialect
    is_told = bool(tools) and not dialect.renders_tools

    def run() -> str:
        return state.model.template.render(
            in_plain_words(plain, tools, dialect.family) if is_told else plain,
            tools=tools if tools and not is_told else None,
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=continues,
            **kwargs,
        )

    # Variables and calls of tools can be of any size. Other messages are their texts, and a turn of a loop.
    is_odd = bool(kwargs) or bool(tools) or any("tool_calls" in message for message in plain)
    num_chars = sum(TURN_CHARS + sum(map(len, message.values())) for message in plain)
    return await state.in_thread(LONG_TEXT if is_odd else num_chars, run)


def template_message(message: Message, where: str) -> dict[str, Any]:
    """Only what was said. Templates know no developer, and expect arguments of calls as objects."""
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
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
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


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            param = f"{where}.function.arguments"
            raise invalid(f"{param}: the arguments are not valid JSON", param) from error
    return {
        **({} if call.id is None else {"id": call.id}),
        "type": "function",
        "function": {"name": call.function.name, "arguments": {} if arguments is None else arguments},
    }
