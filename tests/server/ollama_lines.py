"""Reads streams of Ollama's API."""

import json

from data.json_types import JsonObject

DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def accumulated(lines: list[JsonObject]) -> JsonObject:
    """Return the body of the same response without a stream, as a client puts it together."""
    *parts, last = lines
    assert [line["done"] for line in lines] == [False] * len(parts) + [True]
    whole: JsonObject = json.loads(json.dumps(last))
    target = whole.get("message", whole)
    for line in parts:
        assert (line["model"], line["created_at"]) == (last["model"], last["created_at"])
        for name, value in line.get("message", line).items():
            if name in ("content", "response"):
                target[name] = target[name] + value if line is not parts[0] else value + target[name]
            elif name == "thinking":
                target[name] = target.get(name, "") + value
            elif name == "tool_calls":
                target[name] = target.get(name, []) + value
        if "logprobs" in line:
            whole["logprobs"] = whole.get("logprobs", []) + line["logprobs"]
    return whole


def timeless(body: JsonObject) -> JsonObject:
    assert all(body[name] >= (name != "load_duration") for name in DURATIONS)
    return {name: value for name, value in body.items() if name not in DURATIONS}


def lines_of(content: bytes) -> list[JsonObject]:
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]
