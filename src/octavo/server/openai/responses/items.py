"""Items of the Responses API: normalised, with ids, and as messages for the chat template.

A normalised item has the form in which it is stored, listed and returned. Its id contains the id of the
response that it belongs to, so that a reference to it names the response.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.frontend.conversation import ConversationBuilder
from octavo.server.http.errors import invalid, unsupported
from octavo.server.openai.responses.schema import PART_TYPES, ROLES, InputItem, ItemPart
from octavo.server.openai.responses.tools import custom_arguments, function_name

Item = dict[str, Any]

RESPONSE_PREFIX = "resp_"
ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
REFERENCE = "item_reference"
TEXT_FIELDS = {  # the fields that an item of a type requires, apart from content and output
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id",),
    REFERENCE: ("id",),
}


def item_id(kind: str, response_id: str, place: str) -> str:
    return f"{ID_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}_{place}"


def response_of_item(item_id: str) -> str | None:
    """Return the id of the response that the item belongs to; None if the server did not create the id."""
    parts = item_id.split("_")
    return RESPONSE_PREFIX + parts[1] if len(parts) == 3 and parts[0] in ID_PREFIXES.values() else None


# -- normalise ---------------------------------------------------------------------------------------------


def input_items(given: str | Sequence[InputItem] | None) -> list[Item]:
    """Return the items of a request without ids. References are not resolved."""
    if given is None:
        return []
    if isinstance(given, str):
        return [_message("user", given)]
    return [_normalised(item, f"input[{i}]") for i, item in enumerate(given)]


def with_ids(items: Iterable[Item], response_id: str) -> list[Item]:
    """Return the input items of a response with their ids and statuses, as they are listed."""
    return [
        {"id": item_id(item["type"], response_id, f"in{number}"), **item, "status": "completed"}
        for number, item in enumerate(items)
    ]


def _normalised(item: InputItem, where: str) -> Item:
    kind = item.kind
    if kind != REFERENCE and kind not in ID_PREFIXES:
        raise unsupported(f"{where}.type", f"an item of type {kind[:40]!r}")
    for name in TEXT_FIELDS.get(kind, ()):
        if getattr(item, name) is None:
            raise invalid(f"{where}: an item of type {kind} requires {name}", f"{where}.{name}")
    match kind:
        case "message":
            if item.role is None or item.content is None:
                name = "role" if item.role is None else "content"
                raise invalid(f"{where}: a message requires {name}", f"{where}.{name}")
            return _message(item.role, _text(item.content, f"{where}.content"))
        case "reasoning":
            thought = _text(item.content or [], f"{where}.content")
            return _reasoning(thought or _text(item.summary or [], f"{where}.summary"))
        case "function_call":
            assert item.arguments is not None
            _decoded(item.arguments, f"{where}.arguments")
            return {"type": kind, **_call(item), "arguments": item.arguments}
        case "custom_tool_call":
            return {"type": kind, **_call(item), "input": item.input}
        case "item_reference":
            return {"type": kind, "id": item.id}
    if item.output is None:
        raise invalid(f"{where}: an item of type {kind} requires output", f"{where}.output")
    return {"type": kind, "call_id": item.call_id, "output": _text(item.output, f"{where}.output")}


def _message(role: str, text: str) -> Item:
    assert role in ROLES
    part = (
        {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        if role == "assistant"
        else {"type": "input_text", "text": text}
    )
    return {"type": "message", "role": role, "content": [part]}


def _reasoning(text: str) -> Item:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _call(item: InputItem) -> Item:
    namespace = {} if item.namespace is None else {"namespace": item.namespace}
    return {"call_id": item.call_id, "name": item.name, **namespace}


def _text(content: str | list[ItemPart], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type not in PART_TYPES:
            raise unsupported(f"{where}[{index}]", f"content of type {part.type[:40]!r}")
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise invalid(f"{where}[{index}]: the part has no text", f"{where}[{index}]")
        texts.append(text)
    return "".join(texts)


def _decoded(arguments: str, where: str) -> Any:
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{where}: the arguments are not valid JSON", where) from error


# -- messages ----------------------------------------------------------------------------------------------


def messages(instructions: str | None, earlier: Iterable[Item], given: Iterable[Item]) -> list[Item]:
    """Return the messages of a conversation. `earlier` are items of stored responses."""
    conversation = ConversationBuilder()
    if instructions is not None:
        conversation.add_system(instructions)
    for item in earlier:
        _add(conversation, item, "previous_response_id")
    for number, item in enumerate(given):
        _add(conversation, item, f"input[{number}].arguments")
    return conversation.messages


def _add(conversation: ConversationBuilder, item: Mapping[str, Any], where: str) -> None:
    match item["type"]:
        case "message":
            text = "".join(part["text"] for part in item["content"])
            if item["role"] == "assistant":
                conversation.add_text(text)
            elif item["role"] == "user":
                conversation.add_user(text)
            else:
                conversation.add_system(text)
        case "reasoning":
            conversation.add_reasoning("".join(part["text"] for part in item["content"]))
        case "function_call":
            name = function_name(item["name"], item.get("namespace"))
            conversation.add_call(item["call_id"], name, _decoded(item["arguments"], where) or {})
        case "custom_tool_call":
            name = function_name(item["name"], item.get("namespace"))
            conversation.add_call(item["call_id"], name, custom_arguments(item["input"]))
        case _:
            conversation.add_result(item["call_id"], item["output"])
