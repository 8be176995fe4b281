"""Checks of the events of OpenAI's Responses API: types, order, indices, and what they accumulate to."""

import json
from typing import Any

import pydantic
from openai.types.responses import Response, ResponseStreamEvent

from data.json_types import Json, JsonObject

RESPONSES = "/v1/responses"
ADD: JsonObject = {
    "type": "function",
    "name": "add",
    "description": "adds",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": False,
}
PATCH: JsonObject = {"type": "custom", "name": "patch", "description": "changes files"}
MATHS: JsonObject = {
    "type": "namespace",
    "name": "maths",
    "description": "Mathematics.",
    "tools": [{"type": "function", "name": "sub", "parameters": {"type": "object"}}, PATCH],
}
TOOLS: list[JsonObject] = [ADD, PATCH, MATHS]

EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
WHOLE: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(Response)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def call_text(name: str, arguments: Json) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def check_known(value: object, content: Json, adapter: "pydantic.TypeAdapter[Any] | None" = None) -> None:
    """Check that the content has all fields that OpenAI's client knows and requires, and no other ones."""
    model = value if adapter is None else adapter.validate_python(content, strict=True)
    if isinstance(model, pydantic.BaseModel):
        # The API has `store` in responses, but the client's type does not.
        known = {"store"} if isinstance(model, Response) else set()
        assert not (model.model_extra or {}).keys() - known, (type(model), model.model_extra)
        for name in type(model).model_fields:
            check_known(getattr(model, name), None)
    elif isinstance(model, list):
        for item in model:
            check_known(item, None)


def events_in(stream: bytes) -> list[JsonObject]:
    """Return the events. Checks their form: a name and one line of data."""
    events = []
    *blocks, rest = stream.decode().split("\n\n")
    assert not rest, "the stream ends within an event"
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def check_stream(events: list[JsonObject]) -> JsonObject:
    """Check types, numbers and order of the events, and that they add up to the final response."""
    for event in events:
        check_known(None, event, EVENT)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [kind in TERMINAL for kind in kinds] == [False] * (len(kinds) - 1) + [True]
    final: JsonObject = events[-1]["response"]
    output: list[JsonObject] = []
    rest = [event for event in events[1:-1] if event["type"] != "response.in_progress"]
    while rest:
        output.append(_take_item(rest, len(output)))
    assert output == final["output"]
    return final


def _take_item(rest: list[JsonObject], index: int) -> JsonObject:
    """Take the events of one item and return what they add up to."""
    added = rest.pop(0)
    assert (added["type"], added["output_index"]) == ("response.output_item.added", index)
    item = dict(added["item"])

    def take(kind: str, *, has_item: bool = True) -> JsonObject:
        event = rest.pop(0)
        assert (event["type"], event["output_index"]) == (f"response.{kind}", index)
        assert not has_item or event["item_id"] == item["id"]
        return event

    def deltas(kind: str) -> str:
        found = []
        while rest[0]["type"] == f"response.{kind}.delta":
            found.append(take(f"{kind}.delta")["delta"])
        return "".join(found)

    if item["type"] in ("message", "reasoning"):
        kind = "output_text" if item["type"] == "message" else "reasoning_text"
        part = dict(take("content_part.added")["part"])
        assert (item["content"], part["type"], part["text"]) == ([], kind, "")
        part["text"] = deltas(kind)
        done = take(f"{kind}.done")
        assert done["text"] == part["text"]
        if item["type"] == "message":
            part["logprobs"] = take_logprobs(done, rest[0]["part"])
        assert take("content_part.done")["part"] == part
        item["content"] = [part]
    elif item["type"] == "function_call":
        assert item["arguments"] == ""
        item["arguments"] = deltas("function_call_arguments")
        assert take("function_call_arguments.done")["arguments"] == item["arguments"]
    else:
        assert item["input"] == ""
        item["input"] = deltas("custom_tool_call_input")
        assert take("custom_tool_call_input.done")["input"] == item["input"]
    done = take("output_item.done", has_item=False)["item"]
    if "status" in item:
        assert item["status"] == "in_progress"
        item["status"] = done["status"]
        assert done["status"] in ("completed", "incomplete")
    assert done == item
    return item


def take_logprobs(done: JsonObject, part: JsonObject) -> list[JsonObject]:
    """Return those of the part, which agree with those of the event and have bytes, too."""
    entries: list[JsonObject] = part["logprobs"]
    assert [entry["token"] for entry in done["logprobs"]] == [entry["token"] for entry in entries]
    assert [entry["logprob"] for entry in done["logprobs"]] == [entry["logprob"] for entry in entries]
    return entries
