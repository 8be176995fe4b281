"""LiteLLM against a server at $URL, through three APIs: what it got goes to stdout as JSON."""

import json
import os
from importlib.metadata import version
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download

import litellm

URL = os.environ["URL"]
QUESTION = [{"role": "user", "content": "Hello"}]
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


def chat(model: str, base: str) -> dict[str, Any]:
    common = {"model": model, "api_base": base, "api_key": "none", "max_tokens": 100}
    plain = litellm.completion(messages=QUESTION, **common).choices[0].message.content
    stream = litellm.completion(messages=QUESTION, stream=True, **common)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    asked = litellm.completion(messages=QUESTION, tools=[ADD], **common).choices[0].message
    (called,) = asked.tool_calls
    result = {"role": "tool", "tool_call_id": called.id, "content": "5"}
    answer = litellm.completion(messages=[*QUESTION, asked.model_dump(), result], tools=[ADD], **common)
    return {
        "plain": plain,
        "streamed": streamed,
        "arguments": json.loads(called.function.arguments),
        "result": answer.choices[0].message.content,
    }


def responses() -> dict[str, Any]:
    common = {"model": "openai/scripted", "api_base": f"{URL}/v1", "api_key": "none"}
    first = litellm.responses(input="Hello", **common)
    tool = {"type": "function", **ADD["function"]}
    asked = litellm.responses(input="Hello", tools=[tool], **common)
    (called,) = (item for item in asked.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": called.call_id, "output": "5"}
    answer = litellm.responses(input=[result], previous_response_id=asked.id, tools=[tool], **common)
    return {
        "plain": first.output[0].content[0].text,
        "arguments": json.loads(called.arguments),
        "result": answer.output[-1].content[0].text,
    }


found = {
    "chat": chat("openai/scripted", f"{URL}/v1"),
    "messages": chat("anthropic/scripted", URL),
    "responses": responses(),
}
print(json.dumps({"version": version("litellm"), "found": found}))
