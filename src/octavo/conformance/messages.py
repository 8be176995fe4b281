"""Checks of Anthropic's POST /messages and /messages/count_tokens. Other servers need not have them."""

from collections.abc import Mapping
from typing import Any

from octavo.conformance.chat import text as chat_text
from octavo.conformance.check import Check, NotSupported, expect, expect_equal, expect_kind
from octavo.conformance.shapes import stop_text
from octavo.conformance.target import GREETING, MESSAGE, CheckTarget, Stream, user
from octavo.conformance.transport import Reply, Request

GROUP = "messages"
STOP_REASONS = ("end_turn", "max_tokens", "stop_sequence")
DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
# Short, because the context of a model under test may be, and so that every model can complete a call.
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"name": "add", "input_schema": SCHEMA}
VERSION = {"anthropic-version": "2023-06-01"}


def text(answer: Any) -> str:
    return "".join(block["text"] for block in answer["content"] if block["type"] == "text")


def answer_shape(target: CheckTarget) -> None:
    answer = target.message()
    for name, expected in (("type", "message"), ("role", "assistant"), ("model", target.model)):
        expect_equal(name, answer.get(name), expected)
    expect_kind("id", answer.get("id"), str)
    expect_kind("content", answer.get("content"), list)
    expect(answer["content"], "the content is empty")
    expect(answer.get("stop_reason") in STOP_REASONS, f"stop_reason is {answer.get('stop_reason')!r}")
    for name in ("input_tokens", "output_tokens"):
        expect_kind(f"usage.{name}", answer.get("usage", {}).get(name), int)


def same_as_chat(target: CheckTarget) -> None:
    """Check that the same conversation has the same answer as through chat completions."""
    messages = [*user("Hello."), {"role": "assistant", "content": "Hello!"}, *user(GREETING)]
    answer = target.message(system="Be brief.", messages=messages)
    chat = target.chat(messages=[{"role": "system", "content": "Be brief."}, *messages])
    expect_equal("the text", text(answer), chat_text(chat))
    expect_equal("the tokens of the prompt", _num_input(answer), chat["usage"]["prompt_tokens"])


def blocks(target: CheckTarget) -> None:
    plain = target.message(system="Be brief.")
    answer = target.message(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=user([{"type": "text", "text": GREETING}]),
    )
    expect_equal("the text", text(answer), text(plain))
    expect_equal("the tokens of the prompt", _num_input(answer), _num_input(plain))


def max_tokens(target: CheckTarget) -> None:
    answer = target.message(max_tokens=4)
    found = answer["usage"]["output_tokens"]
    expect(found <= 4, f"{found} tokens with max_tokens 4")
    expect(
        (answer["stop_reason"] == "max_tokens") == (found == 4), f"{answer['stop_reason']} at {found} tokens"
    )


def stop_sequences(target: CheckTarget) -> None:
    plain = text(target.message(max_tokens=32))
    stop = stop_text(plain)
    answer = target.message(max_tokens=32, stop_sequences=[stop])
    expect_equal("the text", text(answer), plain[: plain.index(stop)])
    expect_equal("stop_reason", answer["stop_reason"], "stop_sequence")
    expect_equal("stop_sequence", answer["stop_sequence"], stop)


def tools(target: CheckTarget) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "max_tokens": 96}
    answer = target.message(**fields, messages=user("Hi"), tool_choice={"type": "tool", "name": "add"})
    expect_equal("stop_reason", answer["stop_reason"], "tool_use")
    (call,) = (block for block in answer["content"] if block["type"] == "tool_use")
    expect_equal("name", call["name"], "add")
    expect_kind("id", call["id"], str)
    expect_kind("input", call["input"], dict)
    expect(call["input"].get("a") in (1, 2), f"input is {call['input']}")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "5"}
    messages = [*user("Hi"), {"role": "assistant", "content": [call]}, *user([result])]
    longer = target.message(**fields, messages=messages)
    expect(_num_input(longer) > _num_input(answer), "calls and results are not in the prompt")


def count(target: CheckTarget) -> None:
    fields = {"messages": MESSAGE["messages"], "system": "Be brief.", "tools": [TOOL], "model": target.model}
    reply = target.post("/messages/count_tokens", fields)
    expect_equal("the status", reply.status, 200)
    answer = target.message(system="Be brief.", tools=[TOOL])
    expect_equal("input_tokens", reply.json.get("input_tokens"), _num_input(answer))


def stream(target: CheckTarget) -> None:
    found = target.stream_message()
    kinds = [event["type"] for event in found.events if event["type"] != "ping"]
    names = [name for name in found.names if name != "ping"]
    expect(names == kinds, "the names of events are not their types")
    expect_equal("the first event", kinds[0], "message_start")
    expect(kinds[-2:] == ["message_delta", "message_stop"], f"the last events are {kinds[-2:]}")
    expect(kinds.count("message_start") == 1, "several events message_start")


def stream_blocks(target: CheckTarget) -> None:
    whole, found = target.message(), target.stream_message()
    expect_equal("the content", _accumulated(found), [_comparable(block) for block in whole["content"]])
    (last,) = (event for event in found.events if event["type"] == "message_delta")
    expect_equal("stop_reason", last["delta"]["stop_reason"], whole["stop_reason"])
    expect_equal("output_tokens", last["usage"]["output_tokens"], whole["usage"]["output_tokens"])


def errors(target: CheckTarget) -> None:
    _check_error(_post(target, max_tokens=None), 400, "invalid_request_error")
    _check_error(_post(target, temperature=-1), 400, "invalid_request_error")
    _check_error(_post(target, model="there-is-no-such-model"), 404, "not_found_error")


def key_header(target: CheckTarget) -> None:
    if not target.api_key:
        raise NotSupported("no API key was given")
    for key, status in ((target.api_key, 200), (f"{target.api_key}-wrong", 401)):
        reply = target.transport(Request("GET", "/models", {"x-api-key": key, **VERSION}))
        expect_equal("the status", reply.status, status)


def models(target: CheckTarget) -> None:
    key = {} if target.api_key is None else {"authorization": f"Bearer {target.api_key}"}
    content = target.transport(Request("GET", "/models?limit=1000", {**key, **VERSION})).json
    if not isinstance(content, dict) or "has_more" not in content:
        raise NotSupported("/models has only OpenAI's form")
    for model in content["data"]:
        expect_equal("type", model.get("type"), "model")
        for name in ("id", "display_name", "created_at"):
            expect_kind(name, model.get(name), str)


def _post(target: CheckTarget, **fields: Any) -> Reply:
    return target.post("/messages", {**MESSAGE, "model": target.model, **fields})


def _check_error(reply: Reply, status: int, kind: str) -> None:
    expect_equal("the status", reply.status, status)
    content = reply.json
    expect_equal("type", content["type"], "error")
    expect_equal("error.type", content["error"]["type"], kind)
    expect(content["error"]["message"], "error.message is empty")


def _num_input(answer: Any) -> int:
    """Return the tokens of the prompt. Those from a cache are counted apart."""
    usage: Mapping[str, int] = answer["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(name) or 0 for name in parts)


def _accumulated(stream: Stream) -> list[tuple[str, str]]:
    """Return type and text of each block of a stream."""
    found: list[tuple[str, str]] = []
    for event in stream.events:
        if event["type"] == "content_block_start":
            expect_equal("the index of a block", event["index"], len(found))
            found.append((event["content_block"]["type"], ""))
        elif event["type"] == "content_block_delta" and event["delta"]["type"] in DELTAS:
            expect_equal("the index of a delta", event["index"], len(found) - 1)
            kind, so_far = found[-1]
            found[-1] = (kind, so_far + event["delta"][DELTAS[event["delta"]["type"]]])
    return found


def _comparable(block: Any) -> tuple[str, str]:
    return block["type"], block.get("text", block.get("thinking", ""))


CHECKS = (
    Check(GROUP, "response shape", answer_shape, is_required=False),
    Check(GROUP, "same answer as chat", same_as_chat, is_required=False),
    Check(GROUP, "text and blocks", blocks, is_required=False),
    Check(GROUP, "max_tokens", max_tokens, is_required=False),
    Check(GROUP, "stop_sequences", stop_sequences, is_required=False),
    Check(GROUP, "tools", tools, is_required=False),
    Check(GROUP, "count_tokens", count, is_required=False),
    Check(GROUP, "order of events", stream, is_required=False),
    Check(GROUP, "streamed as unstreamed", stream_blocks, is_required=False),
    Check(GROUP, "errors", errors, is_required=False),
    Check(GROUP, "x-api-key", key_header, is_required=False),
    Check(GROUP, "models", models, is_required=False),
)
