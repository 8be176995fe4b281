"""OpenAI's Responses API, as its own client sees it."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import ResponseItem

from data.json_types import Json, JsonObject
from octavo.server.openai.responses.schema import ResponsesRequest
from server.keyed_bench import ALICE, BOB, KeyedBench, RunKeyed
from server.response_events import (
    ADD,
    MATHS,
    PATCH,
    RESPONSES,
    TOOLS,
    WHOLE,
    call_text,
    check_known,
    check_stream,
    events_in,
)
from server.scripted import ScriptedServer, scripted_server

pytestmark = pytest.mark.assets


@pytest.fixture(scope="module")
def running(assets: Callable[[str], Path]) -> Iterator[ScriptedServer]:
    with scripted_server(assets("tokenizer-qwen3")) as running:
        yield running


@pytest.fixture
def server(running: ScriptedServer) -> Iterator[ScriptedServer]:
    yield running
    running.script.clear()


@pytest.fixture(scope="module")
def client(running: ScriptedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=running.url, api_key="none", max_retries=0) as made:
        yield made


def post(server: ScriptedServer, **body: Json) -> httpx.Response:
    return httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "hi"} | body, timeout=60)


def answered(server: ScriptedServer, says: str, **body: Json) -> JsonObject:
    """Return the response to a request, which has a strictly valid form and equals the streamed one."""
    server.says(says, says)
    whole = post(server, **body)
    assert whole.status_code == 200, whole.text
    response: JsonObject = whole.json()
    check_known(None, response, WHOLE)
    streamed = check_stream(events_in(post(server, **body, stream=True).content))
    assert unnamed(streamed) == unnamed(response)
    return response


def unnamed(response: JsonObject) -> str:
    """Return the response without what differs between two equal requests without an Idempotency-Key."""
    plain = json.dumps({key: value for key, value in response.items() if key != "created_at"})
    for item in response["output"]:
        plain = plain.replace(item.get("call_id", "-"), "CALL")
    return plain.replace(response["id"].removeprefix("resp_"), "ID")


def rejected(server: ScriptedServer, **body: Json) -> tuple[str | None, str | None]:
    """Return the parameter and the code of the error."""
    answer = post(server, **body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"]


# -- the client --------------------------------------------------------------------------------------------


def test_text_reasoning_and_usage(server: ScriptedServer) -> None:
    response = answered(
        server, "<think>\nhmm\n</think>\n\nHello", instructions="Be brief", metadata={"a": "b"}, user="u"
    )
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "hmm"}]
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    assert (response["instructions"], response["metadata"]) == ("Be brief", {"a": "b"})
    assert "Be brief<|im_end|>\n<|im_start|>user\nhi" in server.last_prompt


def test_an_empty_answer_is_an_empty_message(server: ScriptedServer) -> None:
    (item,) = answered(server, "")["output"]
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


def test_tools_of_all_kinds_are_shown_and_restored(server: ScriptedServer) -> None:
    calls = [
        call_text("add", {"a": 1, "b": 2}),
        call_text("patch", {"input": 'a\n"b"'}),
        call_text("maths__sub", {}),
        call_text("maths__patch", {"input": "x"}),
    ]
    output = answered(server, "Let me see.\n" + "\n".join(calls), tools=TOOLS)["output"]
    assert [(item["type"], item.get("namespace"), item.get("name")) for item in output] == [
        ("message", None, None),
        ("function_call", None, "add"),
        ("custom_tool_call", None, "patch"),
        ("function_call", "maths", "sub"),
        ("custom_tool_call", "maths", "patch"),
    ]
    assert json.loads(output[1]["arguments"]) == {"a": 1, "b": 2}
    assert (output[2]["input"], output[4]["input"]) == ('a\n"b"', "x")
    assert "Mathematics." in server.last_prompt
    results = [
        {
            "type": "custom_tool_call_output" if "custom" in item["type"] else "function_call_output",
            "call_id": item["call_id"],
            "output": [{"type": "input_text", "text": f"result {number}"}],
        }
        for number, item in enumerate(output[1:])
    ]
    again = [{"role": "user", "content": "hi"}, *output, *results]
    answered(server, "Done.", tools=TOOLS, input=again)
    prompt = server.last_prompt
    assert prompt.partition("Let me see.")[2].count("<tool_call>\n{") == 4
    assert '"maths__sub"' in prompt.rpartition("Let me see.")[2]
    assert all(f"result {number}" in prompt for number in range(4))


def test_the_client_runs_a_tool_and_continues(server: ScriptedServer, client: openai.OpenAI) -> None:
    server.says(call_text("add", {"a": 2, "b": 3}), "It is 5.", "Bye.")
    fields: JsonObject = {"model": "scripted", "tools": [ADD]}
    first = client.responses.create(input="2 + 3?", **fields)
    (call,) = first.output
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "5!"}
    second = client.responses.create(input=[result], previous_response_id=first.id, **fields)
    assert second.output_text == "It is 5."
    prompt = server.last_prompt
    assert prompt.index("2 + 3?") < prompt.index('"arguments": {"a": 2') < prompt.index("5!")
    third = client.responses.create(
        model="scripted", input="Thanks", instructions="New", previous_response_id=second.id
    )
    assert third.output_text == "Bye."
    assert "New<|im_end|>" in server.last_prompt
    assert server.last_prompt.index("It is 5.") < server.last_prompt.index("Thanks")


def test_the_stream_and_parse_helpers(server: ScriptedServer, client: openai.OpenAI) -> None:
    class Sum(pydantic.BaseModel):
        total: int

    server.says('{"total": 5}', '{"total": 6}')
    parsed = client.responses.parse(model="scripted", input="2 + 3?", text_format=Sum)
    assert parsed.output_parsed == Sum(total=5)
    assert server.prepared[-1].params.grammar is not None
    with client.responses.stream(model="scripted", input="3 + 3?", text_format=Sum) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_parsed == Sum(total=6)
    assert "response.output_text.delta" in kinds


def test_stored_responses(server: ScriptedServer, client: openai.OpenAI) -> None:
    server.says("Hello", "Hello again")
    items: list[Any] = [
        {"role": "developer", "content": "Be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thought"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "2"},
        {"role": "user", "content": "go"},
    ]
    made = client.responses.create(model="scripted", input=items)
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    listed = list(client.responses.input_items.list(made.id, limit=4, order="asc"))
    adapter: pydantic.TypeAdapter[object] = pydantic.TypeAdapter(ResponseItem)
    types = [getattr(item, "type", None) for item in listed]
    assert types == [item.get("type", "message") for item in items if isinstance(item, dict)]
    for item in listed:
        check_known(None, item.to_dict(), adapter)
    newest_first = list(client.responses.input_items.list(made.id, limit=5))
    assert [item.id for item in newest_first] == [item.id for item in reversed(listed)]
    # References name items of the input and of the output.
    references: list[Any] = [{"type": "item_reference", "id": listed[1].id}, {"id": made.output[0].id}]
    client.responses.create(model="scripted", input=[*references, {"role": "user", "content": "more"}])
    assert "hi<|im_end|>\n<|im_start|>assistant\n" in server.last_prompt
    assert "Hello<|im_end|>\n<|im_start|>user\nmore" in server.last_prompt
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="scripted", input="x", previous_response_id=made.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_store_false_keeps_nothing(server: ScriptedServer, client: openai.OpenAI) -> None:
    server.says("Hello")
    made = client.responses.create(model="scripted", input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_response_that_was_streamed_is_stored(server: ScriptedServer) -> None:
    server.says("Hello")
    final = check_stream(events_in(post(server, stream=True).content))
    assert httpx.get(f"{server.url}/responses/{final['id']}").json() == final


def test_a_stream_divided_or_cut_at_every_byte(server: ScriptedServer, client: openai.OpenAI) -> None:
    """The client sees the same events however they arrive, and no end if the stream was cut off."""
    server.says("Let me see. " + call_text("patch", {"input": "é"}))
    stream = post(server, tools=TOOLS, stream=True).content
    decoder = client._make_sse_decoder
    events = [event.json() for event in decoder().iter_bytes(iter([stream]))]
    assert events == events_in(stream)
    for end in range(len(stream)):
        parts = (stream[:end], stream[end:])
        if end % 16 == 0:
            assert [event.json() for event in decoder().iter_bytes(iter(parts))] == events
        complete = stream[:end].count(b"\n\n")
        seen = itertools.islice(decoder().iter_bytes(iter([stream[:end]])), complete)
        assert [event.json() for event in seen] == events[:complete]
        assert complete < len(events)


def test_an_idempotency_key_repeats_the_response(server: ScriptedServer) -> None:
    server.says("Hello", "Hello")
    for stream in (False, True):
        fields: JsonObject = {"json": {"model": "scripted", "input": "hi", "stream": stream}, "timeout": 60}
        headers = {"idempotency-key": f"key-{stream}"}
        first, second = (httpx.post(f"{server.url}/responses", headers=headers, **fields) for _ in range(2))
        assert first.content == second.content
        assert second.headers["idempotency-replayed"] == "true"
        if stream:
            check_stream(events_in(second.content))


def test_one_key_cannot_read_the_responses_of_another(run_keyed: RunKeyed) -> None:
    async def test(bench: KeyedBench) -> None:
        body: JsonObject = {"input": "hi", "max_output_tokens": 2}
        made = json.loads((await bench.ask(ALICE, RESPONSES, body).done()).content)
        path = f"{RESPONSES}/{made['id']}"
        assert await bench.status(ALICE, path) == 200
        assert await bench.status(ALICE, f"{path}/input_items") == 200
        assert await bench.status(BOB, path) == 404
        assert await bench.status(BOB, f"{path}/input_items") == 404
        assert await bench.status(BOB, f"{path}/cancel", {}) == 404
        assert await bench.status(BOB, RESPONSES, body | {"previous_response_id": made["id"]}) == 400
        reference = {"type": "item_reference", "id": made["output"][0]["id"]}
        assert await bench.status(BOB, RESPONSES, body | {"input": [reference]}) == 400
        assert await bench.status(ALICE, RESPONSES, body | {"input": [reference]}) == 200

    run_keyed(test)


# -- fields ------------------------------------------------------------------------------------------------

SCHEMA: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
EFFECTS: dict[str, JsonObject] = {
    "input": {"input": "bye"},
    "instructions": {"instructions": "x"},
    "store": {"store": False},
    "max_output_tokens": {"max_output_tokens": 1 << 30},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_logprobs": {"top_logprobs": 2},
    "include": {"include": ["message.output_text.logprobs"]},
    "tools": {"tools": TOOLS},
    "tool_choice": {"tools": TOOLS, "tool_choice": {"type": "custom", "name": "patch"}},
    "parallel_tool_calls": {"tools": [ADD], "parallel_tool_calls": False},
    "reasoning": {"chat_template_kwargs": {}, "reasoning": {"effort": "low"}},
    "text": {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
    "metadata": {"metadata": {"a": "b"}},
    "seed": {"seed": 8},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "presence_penalty": {"presence_penalty": 1.0},
    "frequency_penalty": {"frequency_penalty": 1.0},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "stop": {"stop": ["."]},
    "continue_final_message": {
        "input": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I"}],
        "continue_final_message": True,
    },
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
    "priority": {"priority": 3},
    "timeout": {"timeout": 9.0},
    "cache_salt": {"cache_salt": "s"},
    "octavo": {"octavo": True},
}
REJECTED: dict[str, Json] = {
    "background": True,
    "truncation": "auto",
    "conversation": "conv_1",
    "prompt": {"id": "pmpt_1"},
    "context_management": [{"type": "compaction"}],
    "moderation": {"model": "m"},
    "previous_response_id": "resp_unknown",
    "model": "other",
}
STREAMED = {"stream"}  # tested above


def test_every_field_has_an_effect_or_is_rejected(server: ScriptedServer) -> None:
    """Fields that are accepted and ignored say so in the description."""
    plain = seen_with(server)
    for name, field in ResponsesRequest.model_fields.items():
        if name in EFFECTS:
            assert seen_with(server, **EFFECTS[name]) != plain, name
        elif name in REJECTED:
            answer = post(server, **{name: REJECTED[name]})
            assert (answer.status_code, answer.json()["error"]["param"]) == (
                404 if name == "model" else 400,
                name,
            )
        elif name not in STREAMED:
            assert "accepted and ignored" in (field.description or ""), name


def seen_with(server: ScriptedServer, **fields: Json) -> tuple[object, ...]:
    """Return what the engine and the client see of a request."""
    server.says("Hello")
    answer = post(server, **{"seed": 7} | fields)
    assert answer.status_code == 200, answer.text
    request = server.prepared[-1]
    message = request.messages[0]
    has_deadline = message.deadline is not None and message.deadline - message.arrival < 60
    format_ = None if request.format is None else request.format.max_calls
    sent = (request.prompt, request.params, message.priority, message.cache_salt, has_deadline, format_)
    return (*sent, unnamed(answer.json()))


INPUTS: dict[str, tuple[Json, str]] = {
    "an image": (
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        "input[0].content[0]",
    ),
    "a hosted call": ([{"type": "web_search_call", "id": "x"}], "input[0].type"),
    "a call that is not JSON": (
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}],
        "input[0].arguments",
    ),
    "a call without a name": (
        [{"type": "function_call", "call_id": "c", "arguments": "{}"}],
        "input[0].name",
    ),
    "a result without output": ([{"type": "function_call_output", "call_id": "c"}], "input[0].output"),
    "a message without content": ([{"role": "user"}], "input[0].content"),
    "a reference to nothing": ([{"type": "item_reference", "id": "msg_1_2"}], "input[0].id"),
    "nothing": (None, "input"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_items_that_are_rejected(server: ScriptedServer, name: str) -> None:
    given, param = INPUTS[name]
    assert rejected(server, input=given)[0] == param


HOSTED = (
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "local_shell",
    "computer",
)


@pytest.mark.parametrize("kind", HOSTED)
def test_hosted_tools_are_rejected_by_name(server: ScriptedServer, kind: str) -> None:
    answer = post(server, tools=[{"type": kind}]).json()["error"]
    assert (answer["param"], answer["code"]) == ("tools[0].type", "unsupported_parameter")
    assert kind in answer["message"]


def test_tools_and_formats_that_are_rejected(server: ScriptedServer) -> None:
    bad: JsonObject = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    assert rejected(server, tools=[ADD | {"strict": True, "parameters": bad}])[0] == "tools[0].parameters"
    assert rejected(server, text={"format": {"type": "json_schema", "name": "n"}})[0] == "text.format.schema"
    assert rejected(server, tools=[ADD, ADD])[0] == "tools"
    assert rejected(server, tools=[ADD], tool_choice={"type": "function", "name": "no"})[0] == "tool_choice"
    assert rejected(server, tools=[ADD], top_logprobs=2)[0] == "top_logprobs"
    assert rejected(server, include=["web_search_call.results"]) == ("include[0]", "unsupported_parameter")


def test_choices_of_tools(server: ScriptedServer) -> None:
    names = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    answered(server, "x", tools=TOOLS, tool_choice=names)
    assert '"name": "add"' in server.last_prompt
    assert '"name": "patch"' not in server.last_prompt
    answered(server, "x", tools=TOOLS, tool_choice="none")
    assert '"name": "add"' not in server.last_prompt
    (call,) = answered(
        server,
        call_text("add", {"a": 1, "b": 2}),
        tools=TOOLS,
        tool_choice={"type": "function", "name": "add"},
    )["output"]
    assert call["name"] == "add"
    grammar = server.prepared[-1].params.grammar
    assert grammar is not None
    assert "patch" not in grammar.text


@pytest.mark.parametrize(("syntax", "definition"), [("regex", "[0-9]+ apples"), ("lark", "start: /[0-9]+/")])
def test_the_input_of_a_custom_tool_has_a_grammar(
    server: ScriptedServer, syntax: str, definition: str
) -> None:
    form: JsonObject = {"type": "grammar", "syntax": syntax, "definition": definition}
    tools = [PATCH | {"format": form}, MATHS | {"tools": [PATCH | {"format": form}]}]
    for name in ("patch", "maths__patch"):
        said = f'<tool_call>\n{{"name": "{name}"}}\n3 apples'
        (call,) = answered(server, said, tools=tools, tool_choice="required")["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", "3 apples")
    grammar = server.prepared[-1].params.grammar
    assert grammar is not None
    assert grammar.text.count("[0-9]+") == 2


def test_tools_and_references_are_bounded(server: ScriptedServer) -> None:
    """Small bodies can ask for much: namespaces contain many tools, and references name large items."""
    many = [{"type": "function", "name": f"f{number}"} for number in range(128)]
    spaces = [{"type": "namespace", "name": f"n{number}", "tools": many} for number in range(5)]
    assert rejected(server, tools=spaces)[0] == "tools"
    server.says("x" * 2000)
    made = post(server, input="y").json()
    references = [{"type": "item_reference", "id": made["output"][0]["id"]}] * 4000
    answer = post(server, input=references)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
