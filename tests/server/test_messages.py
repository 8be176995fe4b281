"""The Anthropic API, requested with Anthropic's client."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import httpx
import pytest
from anthropic.types import Message

from data.json_types import Json, JsonObject
from octavo.server.anthropic.client_nonces import HEADER
from octavo.server.anthropic.schema import CountTokensRequest, MessagesRequest
from server.anthropic_client import ASKED, anthropic_client
from server.messages_fields import ADD, CASES, EFFECTS, ELSEWHERE, NONCE, REFUSED, USER, Case
from server.scripted import ScriptedServer, scripted_server

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3.5}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(assets: Callable[[str], Path]) -> Iterator[ScriptedServer]:
    with scripted_server(assets("tokenizer-qwen3")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ScriptedServer) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(server.url) as made:
        yield made


def post(server: ScriptedServer, body: JsonObject, path: str = "/messages", **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=headers)


def ask(client: anthropic.Anthropic, *, stream: bool, **fields: Json) -> Message:
    asked = ASKED | fields
    if not stream:
        answer: Message = client.messages.create(**asked)
        return answer
    with client.messages.stream(**asked) as events:
        return events.get_final_message()


def prompt_of(server: ScriptedServer, **fields: Json) -> str:
    """Return the prompt that a request with these fields has."""
    server.says("")
    answer = post(server, ASKED | fields)
    assert answer.status_code == 200, answer.text
    return server.last_prompt


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    return answer.status_code, body["error"]["type"], body["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(server: ScriptedServer, client: anthropic.Anthropic, stream: bool) -> None:
    server.says("<think>\nHm.\n</think>\n\nHello there.")
    answer = ask(client, stream=stream)
    thinking, text = answer.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.type == "thinking"
    assert thinking.thinking == "Hm."
    assert thinking.signature
    assert text.type == "text"
    assert text.text == "Hello there."
    assert answer.id.startswith("msg_")
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", "scripted", "end_turn")
    assert answer.usage.input_tokens == len(server.prepared[-1].prompt_ids)
    assert answer.usage.cache_read_input_tokens == 0
    assert answer.usage.output_tokens_details is not None
    assert 0 < answer.usage.output_tokens_details.thinking_tokens < answer.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_a_tool(
    server: ScriptedServer, client: anthropic.Anthropic, stream: bool
) -> None:
    server.says(f"Let me see.\n{CALL}", "It is 5.5.")
    answer = ask(client, stream=stream, messages=[USER], tools=[ADD])
    assert answer.stop_reason == "tool_use"
    text, call = answer.content
    assert text.type == "text"
    assert text.text == "Let me see."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("add", {"a": 2, "b": 3.5})
    assert call.id.startswith("toolu_")
    assert '"description": "adds two numbers"' in server.last_prompt
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "5.5"}]}
    turns = [
        USER,
        {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
    ]
    assert ask(client, stream=stream, messages=turns, tools=[ADD]).stop_reason == "end_turn"
    prompt = server.last_prompt
    assert prompt.index("Let me see.") < prompt.index('{"a": 2, "b": 3.5}') < prompt.index("Go on.")
    assert "<tool_response>\n5.5\n</tool_response>" in prompt


def test_ids_of_calls_return_to_templates_as_the_server_made_them(assets: Callable[[str], Path]) -> None:
    """The template of Mistral accepts only ids of nine characters."""
    with scripted_server(assets("tokenizer-mistral-nemo")) as server, anthropic_client(server.url) as client:
        server.says('[TOOL_CALLS][{"name": "add", "arguments": {"a": 2, "b": 3.5}}]', "5.5")
        answer = ask(client, stream=True, messages=[USER], tools=[ADD])
        (call,) = answer.content
        assert call.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "5.5"}
        turns = [
            USER,
            {"role": "assistant", "content": [call.to_dict()]},
            {"role": "user", "content": [result]},
        ]
        ask(client, stream=False, messages=turns, tools=[ADD])
        assert call.id.removeprefix("toolu_") in server.last_prompt
        assert call.id not in server.last_prompt


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence(server: ScriptedServer, client: anthropic.Anthropic, stream: bool) -> None:
    server.says("one two three")
    answer = ask(client, stream=stream, stop_sequences=["never", " three"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " three")
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "one two"}]


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_has_one_empty_text(
    server: ScriptedServer, client: anthropic.Anthropic, stream: bool
) -> None:
    server.says("")
    assert [block.to_dict() for block in ask(client, stream=stream).content] == [{"type": "text", "text": ""}]


# -- the same conversation through both APIs ---------------------------------------------------------------

AS_CHAT: JsonObject = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2 + 3.5?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "I add.",
            "tool_calls": [
                {
                    "id": "abc123def",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 2, "b": 3.5}'},
                }
            ],
        },
        {"role": "tool", "content": "5.5", "tool_call_id": "abc123def"},
        {"role": "user", "content": "And times two?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": ADD["name"],
                "description": ADD["description"],
                "parameters": ADD["input_schema"],
            },
        }
    ],
    "max_tokens": 64,
    "seed": 5,
    "stop": ["END"],
    "temperature": 0.5,
    "octavo": {"token_ids": True},
}
AS_MESSAGES: JsonObject = {
    "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    "messages": [
        {"role": "user", "content": "What is 2 + 3.5?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I add.", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "Let me "},
                {"type": "text", "text": "see.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "toolu_abc123def", "name": "add", "input": {"a": 2, "b": 3.5}}
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_abc123def", "content": "5.5"},
                {"type": "text", "text": "And times two?"},
            ],
        },
    ],
    "tools": [ADD],
    "max_tokens": 64,
    "seed": 5,
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "octavo": {"token_ids": True},
}


def test_both_apis_have_the_same_prompts_parameters_and_tokens(server: ScriptedServer) -> None:
    server.says(CALL, CALL)
    chat = post(server, AS_CHAT, "/chat/completions").json()
    message = post(server, AS_MESSAGES).json()
    of_chat, of_messages = server.prepared[-2:]
    assert of_messages.prompt_ids == of_chat.prompt_ids
    assert of_messages.params == of_chat.params
    (chat_run,), (messages_run,) = chat["octavo"]["requests"], message["octavo"]["requests"]
    for name in ("seed", "prompt_token_ids"):
        assert messages_run[name] == chat_run[name]
    assert messages_run["choices"][0]["token_ids"] == chat_run["choices"][0]["token_ids"]
    (call,), (block,) = chat["choices"][0]["message"]["tool_calls"], message["content"]
    assert block["id"] == f"toolu_{call['id']}"
    assert block["input"] == json.loads(call["function"]["arguments"])


def test_count_tokens_is_the_usage(server: ScriptedServer, client: anthropic.Anthropic) -> None:
    server.says("x")
    used = post(server, AS_MESSAGES).json()["usage"]["input_tokens"]
    names = ("system", "messages", "tools")
    counted = client.messages.count_tokens(model="scripted", **{name: AS_MESSAGES[name] for name in names})
    assert counted.input_tokens == used == len(server.prepared[-1].prompt_ids)


# -- every field -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_field_has_its_effect(server: ScriptedServer, case: Case) -> None:
    prompt_of(server)
    plain = server.prepared[-1]
    prompt_of(server, **case.fields)
    assert case.has_effect(server.prepared[-1], plain), server.last_prompt


def test_every_field_has_a_case() -> None:
    assert set(MessagesRequest.model_fields) - set(EFFECTS) - set(ELSEWHERE) == set()
    assert set(CountTokensRequest.model_fields) - set(MessagesRequest.model_fields) == set()
    assert all(name in globals() for name in ELSEWHERE.values())


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(
    server: ScriptedServer, fields: JsonObject, message: str
) -> None:
    status, kind, found = error_of(post(server, ASKED | fields))
    assert (status, kind) == (400, "invalid_request_error")
    assert message in found
    assert found.index(message) == 0 or message in ("max_tokens", "tools[0].input_schema")


def test_the_explanation_is_in_both_forms(server: ScriptedServer) -> None:
    server.says("x", "x")
    whole = post(server, ASKED | {"octavo": True, "seed": 5}).json()
    events = post(server, ASKED | {"octavo": True, "seed": 5, "stream": True}).text
    (line,) = [line for line in events.splitlines() if line.startswith('data: {"type":"message_delta"')]
    for found in (whole, json.loads(line.removeprefix("data: "))):
        assert found["octavo"]["requests"][0]["seed"] == 5


def test_an_effort_is_an_argument_of_the_template(tiny_checkpoint: Path) -> None:
    with scripted_server(tiny_checkpoint) as server:
        assert prompt_of(server, output_config={"effort": "low"}).startswith("low")


# -- nonces ------------------------------------------------------------------------------------------------


def test_a_nonce_is_dropped_and_reported(server: ScriptedServer) -> None:
    """Also for count_tokens, and for a repeated answer."""
    prompts = set()
    for number in range(3):
        system = [{"type": "text", "text": NONCE % number}, {"type": "text", "text": "Be brief."}]
        server.says("x")
        body = ASKED | {"system": system, "stream": bool(number % 2)}
        for _ in range(2):
            answer = post(server, body, **{"idempotency-key": f"nonce-{number}"})
            assert answer.headers[HEADER] == "1"
        prompts.add(server.last_prompt)
        del body["stream"], body["max_tokens"]
        counted = post(server, body, "/messages/count_tokens")
        assert counted.headers[HEADER] == "1"
        assert counted.json() == {"input_tokens": len(server.prepared[-1].prompt_ids)}
    assert len(prompts) == 1
    server.says("x")
    assert HEADER not in post(server, ASKED).headers


@pytest.mark.parametrize(
    "text",
    [
        NONCE % 1 + "\nYou are an agent.",
        "You are an agent. " + NONCE % 1,
        "x-anthropic-billing-header: none",
        "",
    ],
)
def test_other_text_is_kept(server: ScriptedServer, text: str) -> None:
    assert text in prompt_of(server, system=[{"type": "text", "text": text}])
    # Nor is a nonce dropped anywhere but from the first block.
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": NONCE % 1}]
    assert "x-anthropic-billing-header" in prompt_of(server, system=system)
