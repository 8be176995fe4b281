"""Tool calls and reasoning as parsed by OpenAI's client, for every model family."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionFunctionToolParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.chat_completion import Choice

from data.json_types import Json, JsonObject
from server.node import run_node
from server.scripted import ScriptedServer, scripted_server

pytestmark = pytest.mark.assets

TOOLS: list[ChatCompletionFunctionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} two numbers",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
    for name in ("add", "multiply")
]
HERMES_CALL = '{"name": "add", "arguments": {"a": 2, "b": 3.5}}'
# The syntax of each model: one call after some text (if it supports this), and two calls.
ONE_CALL = {
    "tokenizer-qwen2.5": f"Let me see.\n<tool_call>\n{HERMES_CALL}\n</tool_call>",
    "tokenizer-qwen3": f"Let me see.\n\n<tool_call>\n{HERMES_CALL}\n</tool_call>",
    "tokenizer-llama3.2": '<|python_tag|>{"name": "add", "parameters": {"a": 2, "b": 3.5}}',
    "tokenizer-mistral-nemo": 'Let me see.[TOOL_CALLS][{"name": "add", "arguments": {"a": 2, "b": 3.5}}]',
    "tokenizer-gemma3": "Let me see.\n```tool_code\nprint(add(a=2, b=3.5))\n```",
}
TWO_CALLS = {
    "tokenizer-qwen2.5": (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
    ),
    "tokenizer-llama3.2": "[add(a=1, b=2), multiply(3, 4)]",
    "tokenizer-mistral-nemo": (
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}},'
        ' {"name": "multiply", "arguments": {"a": 3, "b": 4}}]'
    ),
    "tokenizer-gemma3": "```tool_code\nadd(1, 2)\nmultiply(a=3, b=4)\n```",
}
QUESTION: ChatCompletionUserMessageParam = {"role": "user", "content": "What is 2 + 3.5?"}


Servers = Callable[[str], ScriptedServer]


@pytest.fixture(scope="module")
def servers(assets: Callable[[str], Path]) -> Iterator[Servers]:
    """Servers by tokenizer name, started on first use."""
    running: dict[str, tuple[AbstractContextManager[ScriptedServer], ScriptedServer]] = {}

    def server(name: str) -> ScriptedServer:
        if name not in running:
            context = scripted_server(assets(name))
            running[name] = context, context.__enter__()
        return running[name][1]

    yield server
    for context, _ in running.values():
        context.__exit__(None, None, None)


def client_of(server: ScriptedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def ask(server: ScriptedServer, *, stream: bool, **fields: Json) -> Choice:
    """Return the only choice, as a whole or from a stream assembled by the client."""
    asked: JsonObject = {"model": "scripted", "messages": [QUESTION], "tools": TOOLS} | fields
    client = client_of(server)
    if not stream:
        answer: ChatCompletion = client.chat.completions.create(**asked)
        return answer.choices[0]
    with client.chat.completions.stream(**asked) as events:
        for _ in events:
            pass
        return events.get_final_completion().choices[0]


def called(choice: Choice) -> list[tuple[str, Json]]:
    found = []
    for call in choice.message.tool_calls or []:
        assert call.type == "function"
        found.append((call.function.name, json.loads(call.function.arguments)))
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ONE_CALL)
def test_a_conversation_with_a_tool(name: str, stream: bool, servers: Servers) -> None:
    server = servers(name)
    server.says(ONE_CALL[name], "It is 5.5.")
    choice = ask(server, stream=stream)
    assert choice.finish_reason == "tool_calls"
    assert called(choice) == [("add", {"a": 2, "b": 3.5})]
    assert (choice.message.content or "") == ("" if "llama" in name else "Let me see.")
    assert "add two numbers" in server.last_prompt
    # The client sends the call back with the result.
    (call,) = choice.message.tool_calls or []
    said = choice.message.model_dump(exclude_none=True, exclude={"parsed", "refusal"})
    for written in said["tool_calls"]:
        written["function"].pop("parsed_arguments", None)
    result = {"role": "tool", "tool_call_id": call.id, "content": "the result 5.5"}
    final = ask(server, stream=stream, messages=[QUESTION, said, result])
    assert final.finish_reason == "stop"
    assert final.message.content == "It is 5.5."
    assert not final.message.tool_calls
    prompt = server.last_prompt.replace("\\", "")
    assert prompt.index("What is 2 + 3.5?") < prompt.rindex("3.5") < prompt.index("the result 5.5")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TWO_CALLS)
def test_parallel_and_single_calls(name: str, stream: bool, servers: Servers) -> None:
    server = servers(name)
    server.says(TWO_CALLS[name], TWO_CALLS[name])
    choice = ask(server, stream=stream)
    assert called(choice) == [("add", {"a": 1, "b": 2}), ("multiply", {"a": 3, "b": 4})]
    ids = [call.id for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 2
    if "mistral" in name:
        assert all(len(one) == 9 and one.isalnum() for one in ids)
    alone = ask(server, stream=stream, parallel_tool_calls=False)
    assert called(alone) == [("add", {"a": 1, "b": 2})]
    assert alone.finish_reason == "tool_calls"


def test_the_deltas_of_a_call(servers: Servers) -> None:
    """First the name with an id, then the arguments, all with the same index."""
    server = servers("tokenizer-qwen2.5")
    server.says(TWO_CALLS["tokenizer-qwen2.5"])
    stream: openai.Stream[ChatCompletionChunk] = client_of(server).chat.completions.create(
        model="scripted", messages=[QUESTION], tools=TOOLS, stream=True
    )
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)
    for index, name in enumerate(("add", "multiply")):
        first, *rest = [delta for delta in deltas if delta.index == index]
        assert first.function is not None
        assert (first.function.name, first.function.arguments, first.type) == (name, "", "function")
        assert first.id
        assert all((delta.id, delta.type) == (None, None) for delta in rest)
        assert all(delta.function is not None and delta.function.name is None for delta in rest)
        assert len(rest) > 1, "arguments are not streamed"


def test_the_node_client_runs_tools(servers: Servers, node_folder: Path) -> None:
    """The loop of the client handles calls, results and the final answer."""
    server = servers("tokenizer-qwen2.5")
    server.says(*[TWO_CALLS["tokenizer-qwen2.5"], "3 and 12."] * 2)
    seen = run_node("tools.mjs", node_folder, server.url)
    both = [["add", {"a": 1, "b": 2}], ["multiply", {"a": 3, "b": 4}]]
    assert seen == {"whole": "3 and 12.", "streamed": "3 and 12.", "calls": both + both}
    assert "<tool_response>\n3\n</tool_response>\n<tool_response>\n12" in server.last_prompt


def test_calls_are_not_parsed_without_tools(servers: Servers) -> None:
    server = servers("tokenizer-qwen2.5")
    text = ONE_CALL["tokenizer-qwen2.5"]
    server.says(text, text)
    choice = ask(server, stream=False, tool_choice="none")
    assert choice.message.content == text
    assert choice.message.tool_calls is None
    assert "add two numbers" not in server.last_prompt
    assert ask(server, stream=False, tools=openai.omit).message.content == text


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_separate_from_content(stream: bool, servers: Servers) -> None:
    server = servers("tokenizer-qwen3")
    thought = "I could stop. </b> So: add."
    server.says(f"<think>\n{thought}\n</think>\n\n{ONE_CALL['tokenizer-qwen3']}")
    fields: JsonObject = {"model": "scripted", "messages": [QUESTION], "tools": TOOLS, "stop": ["stop"]}
    client = client_of(server)
    if stream:
        chunks = list(
            client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        )
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        reasoning: str | None = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        content: str | None = "".join(delta.content or "" for delta in deltas)
        usage = chunks[-1].usage
        finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
    else:
        answer = client.chat.completions.create(**fields)
        message = answer.choices[0].message
        more = message.model_extra
        assert more is not None
        assert more["reasoning"] == more["reasoning_content"]
        reasoning, content = more["reasoning_content"], message.content
        usage, finish = answer.usage, answer.choices[0].finish_reason
    assert (reasoning, content, finish) == (thought, "Let me see.", "tool_calls")
    assert usage is not None
    assert usage.completion_tokens_details is not None
    num_reasoning = usage.completion_tokens_details.reasoning_tokens
    assert num_reasoning is not None
    assert 8 < num_reasoning < usage.completion_tokens - 20


def test_effort_and_thinking_reach_the_template(servers: Servers) -> None:
    server = servers("tokenizer-qwen3")
    server.says("Yes.", "Yes.")
    ask(server, stream=False, tools=openai.omit)
    assert "<think>" not in server.last_prompt
    ask(
        server,
        stream=False,
        tools=openai.omit,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    assert server.last_prompt.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice.function.name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [TOOLS[0]] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
    ],
)
def test_invalid_fields_are_rejected(fields: JsonObject, param: str, servers: Servers) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(servers("tokenizer-qwen2.5"), stream=False, **fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)
