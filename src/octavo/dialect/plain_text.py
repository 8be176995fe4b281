"""Tools for models whose template does not support them: described, called and answered in plain text.

Such a model was not trained on tools, so it may not understand them. Two things are guaranteed: later prompts
repeat its calls as it wrote them, and with `tool_choice: required` the grammar makes its calls valid.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
INPUT = "input"  # the only argument of a call of a tool whose input is text

HERMES_RULES = """\
You may call functions. Their descriptions, one a line:
{tools}
To call one, answer with nothing but its name and arguments as JSON between tags:
<tool_call>
{{"name": "function", "arguments": {{"argument": "value"}}}}
</tool_call>"""

GEMMA_RULES = """\
You may call functions. Their descriptions, one a line:
{tools}
To call one, answer with nothing but the call, in Python:
```tool_code
function(argument="value")
```"""


def in_plain_words(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    family: str,
    text_tools: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return the conversation with roles system, user and assistant only, and tools in the system message."""
    rules = GEMMA_RULES if family == "gemma" else HERMES_RULES
    rules = rules.format(tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))
    conversation: list[dict[str, Any]] = []
    last_role = None
    for message in messages:
        if message["role"] == "tool" == last_role:
            # Join results of several calls: many templates require user and assistant messages to alternate.
            conversation[-1]["content"] += "\n" + _result(message, family)
        elif message["role"] == "tool":
            conversation.append({"role": "user", "content": _result(message, family)})
        elif message.get("tool_calls"):
            conversation.append({"role": "assistant", "content": _with_calls(message, family, text_tools)})
        else:
            conversation.append(dict(message))
        last_role = message["role"]
    if conversation and conversation[0]["role"] == "system":
        conversation[0]["content"] = f"{conversation[0]['content']}\n\n{rules}"
    else:
        conversation.insert(0, {"role": "system", "content": rules})
    return conversation


def with_text_calls(messages: Sequence[Message], text_tools: Collection[str]) -> list[Message]:
    """Return the messages with the calls as text in those with a text tool, which templates do not know."""
    return [_with_text_calls(message, text_tools) for message in messages]


def _with_text_calls(message: Message, text_tools: Collection[str]) -> Message:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not any(_has_text(call, text_tools) for call in calls):
        return message
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    reasoning = message.get("reasoning_content") or ""  # else some templates search the content for it
    return {**kept, "reasoning_content": reasoning, "content": _with_calls(message, "hermes", text_tools)}


def _result(message: Message, family: str) -> str:
    if family == "gemma":
        return f"```tool_output\n{message['content']}\n```"
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _with_calls(message: Message, family: str, text_tools: Collection[str]) -> str:
    calls = [call["function"] for call in message["tool_calls"]]
    if family == "gemma":
        code = "\n".join(_as_python(call["name"], call["arguments"]) for call in calls)
        texts = [f"```tool_code\n{code}\n```"]
    else:
        texts = [_tagged(call, text_tools) for call in calls]
    return "\n".join([*([message["content"]] if message["content"] else []), *texts])


def _has_text(call: Mapping[str, Any], text_tools: Collection[str]) -> bool:
    arguments = call.get("arguments")
    is_text = isinstance(arguments, Mapping) and isinstance(arguments.get(INPUT), str)
    return call["name"] in text_tools and is_text


def _tagged(call: Mapping[str, Any], text_tools: Collection[str]) -> str:
    """Return the call as the model writes it: see `call_grammar`."""
    if _has_text(call, text_tools):
        named = json.dumps({"name": call["name"]}, ensure_ascii=False)
        return f"<tool_call>\n{named}\n{call['arguments'][INPUT]}"
    named = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{named}\n</tool_call>"


def _as_python(name: str, arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return f"{name}({arguments!r})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
