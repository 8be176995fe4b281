"""Checks of OpenAI's POST /responses. Other servers need not have it."""

from typing import Any

import msgspec

from octavo.conformance.chat import text as chat_text
from octavo.conformance.check import Check, NotSupported, expect, expect_equal, expect_kind
from octavo.conformance.messages import SCHEMA
from octavo.conformance.target import GREETING, RESPONSE, CheckTarget, user

GROUP = "responses"
TOOL = {"type": "function", "name": "add", "strict": True, "parameters": SCHEMA}
# Syntax, definition and allowed texts of the grammar of a custom tool's input.
INPUTS = (
    ("lark", 'start: "<" x ">"\nx: /a|b/', ("<a>", "<b>")),
    ("regex", "yes|no", ("yes", "no")),
)
ENDS = ("response.completed", "response.incomplete")


def text(answer: Any) -> str:
    return "".join(
        part["text"]
        for item in answer["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def answer_shape(target: CheckTarget) -> None:
    answer = target.respond()
    for name, expected in (("object", "response"), ("model", target.model), ("error", None)):
        expect_equal(name, answer.get(name), expected)
    expect_kind("id", answer.get("id"), str)
    expect(answer.get("status") in ("completed", "incomplete"), f"status is {answer.get('status')!r}")
    expect_kind("output", answer.get("output"), list)
    expect(answer["output"], "the output is empty")
    usage = answer["usage"]
    total = usage["input_tokens"] + usage["output_tokens"]
    expect_equal("usage.total_tokens", usage["total_tokens"], total)
    for name in ("input_tokens_details", "output_tokens_details"):
        expect_kind(f"usage.{name}", usage.get(name), dict)


def same_as_chat(target: CheckTarget) -> None:
    """Check that the same conversation has the same answer as through chat completions."""
    messages = [*user("Hello."), {"role": "assistant", "content": "Hello!"}, *user(GREETING)]
    answer = target.respond(instructions="Be brief.", input=messages)
    chat = target.chat(messages=[{"role": "system", "content": "Be brief."}, *messages])
    expect_equal("the text", text(answer), chat_text(chat))
    expect_equal("input_tokens", answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])


def max_output_tokens(target: CheckTarget) -> None:
    answer = target.respond(max_output_tokens=4)
    found = answer["usage"]["output_tokens"]
    expect(found <= 4, f"{found} tokens with max_output_tokens 4")
    if found == 4:
        expect_equal("status", answer["status"], "incomplete")
        expect_equal("the reason", answer["incomplete_details"]["reason"], "max_output_tokens")


def tools(target: CheckTarget) -> None:
    fields = {"tools": [TOOL], "max_output_tokens": 96}
    answer = target.respond(**fields, input="Hi", tool_choice={"type": "function", "name": "add"})
    (call,) = (item for item in answer["output"] if item["type"] == "function_call")
    expect_equal("name", call["name"], "add")
    expect_kind("call_id", call["call_id"], str)
    arguments = msgspec.json.decode(call["arguments"])
    expect(arguments.get("a") in (1, 2), f"the arguments are {call['arguments']}")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    longer = target.respond(**fields, input=[*user("Hi"), call, result])
    grows = longer["usage"]["input_tokens"] > answer["usage"]["input_tokens"]
    expect(grows, "calls and results are not in the prompt")


def custom_tools(target: CheckTarget) -> None:
    """Check that the input of a custom tool conforms to its grammar."""
    for syntax, definition, allowed in INPUTS:
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        tool = {"type": "custom", "name": "pick", "format": form}
        choice = {"type": "custom", "name": "pick"}
        answer = target.respond(tools=[tool], tool_choice=choice, input="Hi", max_output_tokens=64)
        calls = [item for item in answer["output"] if item["type"] == "custom_tool_call"]
        expect([call["name"] for call in calls] == ["pick"], f"the answer has {len(calls)} calls")
        given = calls[0]["input"]
        expect(given in allowed, f"the input of a {syntax} grammar is {given!r}")


def schema(target: CheckTarget) -> None:
    wanted = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "name": "answer", "schema": wanted, "strict": True}
    answer = target.respond(text={"format": form}, max_output_tokens=64)
    expect(text(answer).lstrip().startswith("{"), "the text is not an object")
    if answer["status"] == "completed":
        expect_kind("ok", msgspec.json.decode(text(answer)).get("ok"), bool)


def order(target: CheckTarget) -> None:
    stream = target.stream_response()
    kinds = [event["type"] for event in stream.events]
    expect(list(stream.names) == kinds, "the names of events are not their types")
    expect(kinds[:2] == ["response.created", "response.in_progress"], f"the first events are {kinds[:2]}")
    expect(kinds[-1] in ENDS, f"the last event is {kinds[-1]}")
    numbers = [event["sequence_number"] for event in stream.events]
    expect(numbers == list(range(numbers[0], numbers[0] + len(numbers))), "sequence_number has gaps")


def streamed(target: CheckTarget) -> None:
    whole, stream = target.respond(), target.stream_response()
    deltas = [event["delta"] for event in stream.events if event["type"] == "response.output_text.delta"]
    expect_equal("the text", "".join(deltas), text(whole))
    last = stream.events[-1]["response"]
    expect_equal("the text of the last event", text(last), text(whole))
    expect_equal("output_tokens", last["usage"]["output_tokens"], whole["usage"]["output_tokens"])


def stored(target: CheckTarget) -> None:
    first = target.respond(store=True)
    path = f"/responses/{first['id']}"
    found = target.get(path)
    if found.status != 200:
        raise NotSupported("responses are not stored")
    expect_equal("the stored output", found.json["output"], first["output"])
    follow_up = target.respond(previous_response_id=first["id"], input="And then?")
    grows = follow_up["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    expect(grows, "the previous response is not in the prompt")
    expect_equal("the status of DELETE", target.delete(path).status, 200)
    expect_equal("the status after DELETE", target.get(path).status, 404)


def not_stored(target: CheckTarget) -> None:
    answer = target.respond(store=False)
    expect_equal("the status of GET", target.get(f"/responses/{answer['id']}").status, 404)
    reply = target.post(
        "/responses", {**RESPONSE, "model": target.model, "previous_response_id": answer["id"]}
    )
    expect(reply.status in (400, 404), f"status {reply.status} for a previous response that is not stored")


CHECKS = (
    Check(GROUP, "response shape", answer_shape, is_required=False),
    Check(GROUP, "same answer as chat", same_as_chat, is_required=False),
    Check(GROUP, "max_output_tokens", max_output_tokens, is_required=False),
    Check(GROUP, "tools", tools, is_required=False),
    Check(GROUP, "custom tools", custom_tools, is_required=False),
    Check(GROUP, "text.format", schema, is_required=False),
    Check(GROUP, "order of events", order, is_required=False),
    Check(GROUP, "streamed as unstreamed", streamed, is_required=False),
    Check(GROUP, "stored responses", stored, is_required=False),
    Check(GROUP, "store: false", not_stored, is_required=False),
)
