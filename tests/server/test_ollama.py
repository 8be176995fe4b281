"""The API of Ollama: lines, prompts, fields and errors. `test_ollama_client.py` has a real client."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from conversations.conversations import FIFTY
from data.json_types import Json, JsonObject
from octavo.server.ollama.schema import OllamaChat, OllamaCompletion, OllamaOptions
from patience import HANG_SECONDS
from server.exchange import Exchange
from server.null_bench import Bench, RunNull
from server.ollama_lines import accumulated, lines_of, timeless
from server.process import Server, StartServer
from server.scripted import ScriptedServer, scripted_server

pytestmark = pytest.mark.xdist_group("server")

CHAT, GENERATE, OPENAI_CHAT = "/api/chat", "/api/generate", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
ASKED: JsonObject = {"model": "tiny", "options": {"seed": 7, "temperature": 0, "num_predict": 12}}
BASE: dict[str, JsonObject] = {CHAT: ASKED | {"messages": HELLO}, GENERATE: ASKED | {"prompt": "hello"}}


def ask(server: Server, path: str, *, stream: bool = False, **fields: Json) -> JsonObject:
    body = BASE[path] | fields | {"stream": stream}
    if "options" in fields:
        body["options"] = ASKED["options"] | fields["options"]
    answer = server.post(path, body)
    if answer.status_code != 200:
        return {"error": (answer.status_code, answer.json())}
    if not stream:
        assert answer.headers["content-type"] == "application/json"
        return timeless(answer.json())
    assert answer.headers["content-type"] == "application/x-ndjson"
    return timeless(accumulated(lines_of(answer.content)))


def text_of(answer: JsonObject) -> str:
    return str(answer["message"]["content"] if "message" in answer else answer["response"])


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_stream_is_the_default_and_equals_the_body(server: Server, path: str) -> None:
    whole, streamed = ask(server, path), ask(server, path, stream=True)
    for answer in (whole, streamed):
        answer.pop("created_at")
    assert whole == streamed
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 12)
    assert text_of(whole)
    for absent in ({}, {"stream": None}):
        default = server.post(path, BASE[path] | absent)
        assert default.headers["content-type"] == "application/x-ndjson"
        assert text_of(accumulated(lines_of(default.content))) == text_of(whole)


# -- prompts -----------------------------------------------------------------------------------------------

Servers = Callable[[str], ScriptedServer]


@pytest.fixture(scope="module")
def servers(assets: Callable[[str], Path]) -> Iterator[Servers]:
    with ExitStack() as running:
        started: dict[str, ScriptedServer] = {}

        def find(name: str) -> ScriptedServer:
            if name not in started:
                started[name] = running.enter_context(scripted_server(assets(name)))
            return started[name]

        yield find


def send(server: ScriptedServer, path: str, body: JsonObject) -> httpx.Response:
    return httpx.post(server.url.removesuffix("/v1") + path, json=body, timeout=HANG_SECONDS)


def post(server: ScriptedServer, path: str, body: JsonObject) -> Json:
    answer = send(server, path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def as_ollama(messages: tuple[JsonObject, ...], *, with_ids: bool) -> list[JsonObject]:
    """Return OpenAI's messages in Ollama's form."""
    converted = []
    for one in messages:
        plain = {"role": one["role"], "content": one["content"] or ""}
        if "reasoning_content" in one:
            plain["thinking"] = one["reasoning_content"]
        if with_ids and "tool_call_id" in one:
            plain["tool_call_id"] = one["tool_call_id"]
        for call in one.get("tool_calls", ()):
            function, arguments = call["function"], call["function"]["arguments"]
            known = json.loads(arguments) if isinstance(arguments, str) else arguments
            shown = {"function": {"name": function["name"], "arguments": known}}
            plain.setdefault("tool_calls", []).append(shown | ({"id": call["id"]} if with_ids else {}))
        converted.append(plain)
    return converted


PLAIN_TURNS = [one for one in FIFTY if not one.continues and one.tool_choice in ("auto", "none")]


@pytest.mark.assets
@pytest.mark.parametrize("name", ["tokenizer-qwen2.5", "tokenizer-qwen3", "tokenizer-llama3.2"])
def test_prompts_equal_those_of_chat_completions(servers: Servers, name: str) -> None:
    server = servers(name)
    for one in PLAIN_TURNS:
        tools = list(one.tools) if one.tool_choice == "auto" else []
        thinks = one.template.get("enable_thinking")
        server.script[:] = ["Hi."] * 3
        body: JsonObject = {"messages": list(one.messages), "tools": tools}
        num_before = len(server.prepared)
        asked = [send(server, OPENAI_CHAT, body | {"chat_template_kwargs": dict(one.template)})]
        for with_ids in (True, False):
            body = {"messages": as_ollama(one.messages, with_ids=with_ids), "tools": without_strict(tools)}
            asked.append(send(server, CHAT, body | {"stream": False, "think": thinks}))
        # Some templates reject some conversations, in all APIs.
        assert len({answer.status_code for answer in asked}) == 1, one.name
        assert len({prepared.prompt_ids for prepared in server.prepared[num_before:]}) <= 1, one.name
    assert len(server.prepared) >= 3 * len(PLAIN_TURNS) - 6
    server.script.clear()


def without_strict(tools: list[JsonObject]) -> list[JsonObject]:
    return [
        tool | {"function": {name: value for name, value in tool["function"].items() if name != "strict"}}
        for tool in tools
    ]


@pytest.mark.assets
def test_templates_that_check_the_ids_of_calls_get_valid_ones(servers: Servers) -> None:
    """Mistral's templates require ids of nine characters, and the id of its call with each result."""
    server = servers("tokenizer-mistral-nemo")
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    other = {"function": {"name": "g", "arguments": {}}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call, other]},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]
    server.says("Hi.")
    post(server, CHAT, {"messages": messages, "tools": tools, "stream": False})
    prompt = server.last_prompt
    assert prompt.count("000000001") == prompt.count("000000002") == 2
    (of_g, of_f) = (part.partition("[/TOOL_RESULTS]")[0] for part in prompt.split("[TOOL_RESULTS]")[1:])
    assert "of g" in of_g
    assert "000000002" in of_g
    assert "of f" in of_f
    assert "000000001" in of_f


@pytest.mark.assets
def test_calls_and_thinking(servers: Servers) -> None:
    server = servers("tokenizer-qwen3")
    said = (
        '<think>\nHm.\n</think>\n\nI add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    )
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    server.says(said, said)
    asked = {"messages": HELLO, "tools": tools}
    whole = post(server, CHAT, asked | {"stream": False})["message"]
    assert (whole["role"], whole["thinking"], whole["content"].strip()) == ("assistant", "Hm.", "I add.")
    (call,) = whole["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": {"a": 2}}
    again = accumulated(lines_of(send(server, CHAT, asked).content))["message"]
    for one in (whole, again):
        one["tool_calls"][0].pop("id")
    assert again == whole


@pytest.mark.assets
def test_generate_renders_the_template_unless_raw(servers: Servers) -> None:
    server = servers("tokenizer-qwen2.5")
    server.says("Hi.", "Hi.", "Hi.", "Hi.")
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    post(server, CHAT, {"messages": messages, "stream": False})
    post(server, GENERATE, {"prompt": "hello", "system": "Be brief.", "stream": False})
    assert server.prepared[-1].prompt_ids == server.prepared[-2].prompt_ids
    post(server, GENERATE, {"prompt": "hello", "raw": True, "stream": False})
    assert server.last_prompt == "hello"
    post(server, GENERATE, {"prompt": "x = ", "suffix": "\n", "stream": False})
    asked = {"prompt": "x = ", "suffix": "\n"}
    server.says("Hi.")
    post(server, "/v1/completions", asked)
    assert server.prepared[-1].prompt_ids == server.prepared[-2].prompt_ids
    assert server.prepared[-1].messages[0].stop_ids == server.prepared[-2].messages[0].stop_ids


# -- fields ------------------------------------------------------------------------------------------------

Effect = Callable[[JsonObject, JsonObject], bool]  # called with the answer and the answer without the field


def same(answer: JsonObject, plain: JsonObject) -> bool:
    return text_of(answer) == text_of(plain)


def differs(answer: JsonObject, plain: JsonObject) -> bool:
    return not same(answer, plain)


def rejected(name: str, status: int = 400) -> Effect:
    return lambda answer, _: answer["error"][0] == status and name in answer["error"][1]["error"]


def num_tokens(count: int) -> Effect:
    return lambda answer, _: bool(answer["eval_count"] == count)


def case_id(value: object) -> str | None:
    return None if callable(value) else str(value)[:40]


SAMPLED = {"temperature": 1.0}
YES = {"enum": ["yes"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

OPTIONS: list[tuple[JsonObject, JsonObject, Effect]] = [
    # options, options of both requests, effect
    ({"temperature": 1.5}, {}, differs),
    ({"top_p": 0.5}, SAMPLED, differs),
    ({"top_k": 1} | SAMPLED, {}, same),
    ({"top_k": -1}, SAMPLED, same),
    ({"min_p": 1.0} | SAMPLED, {}, same),
    ({"seed": 8}, SAMPLED, differs),
    ({"num_predict": 3}, {}, num_tokens(3)),
    ({"num_predict": 1 << 20}, {}, lambda a, _: a["done_reason"] in ("stop", "length") and "error" not in a),
    ({"num_predict": -1}, {}, lambda a, _: bool(a["eval_count"] > 12)),
    ({"stop": ["z"]}, {}, lambda a, p: text_of(a) == text_of(p).partition("z")[0]),
    ({"stop": "z"}, {}, lambda a, p: text_of(a) == text_of(p).partition("z")[0]),
    ({"repeat_penalty": 3.0}, {}, differs),
    ({"presence_penalty": 2.0, "frequency_penalty": 2.0}, {"num_predict": 60}, differs),
    ({"frequency_penalty": 2.0}, {"num_predict": 60}, differs),
    ({"typical_p": 0.5}, {}, rejected("options.typical_p")),
    ({"tfs_z": 0.5}, {}, rejected("options.tfs_z")),
    ({"mirostat": 2}, {}, rejected("options.mirostat")),
    ({"penalize_newline": False}, {}, rejected("options.penalize_newline")),
    ({"repeat_last_n": 64, "repeat_penalty": 1.1}, {}, rejected("options.repeat_last_n")),
    (
        {"typical_p": 1.0, "tfs_z": 1, "mirostat": 0, "penalize_newline": True, "repeat_last_n": 64},
        {},
        same,
    ),
    ({"mirostat_tau": 5.0, "mirostat_eta": 0.1, "num_ctx": 1, "num_thread": 2, "unknown": {}}, {}, same),
    ({"temperature": -1}, {}, rejected("temperature")),
    ({"seed": "x"}, {}, rejected("options.seed")),
]

OF_BOTH: list[tuple[JsonObject, Effect]] = [
    ({"model": "another"}, rejected("no model 'another'", 404)),
    ({"model": "tiny:latest"}, same),
    ({"model": "tiny:other"}, rejected("no model", 404)),
    ({"model": None}, same),
    ({"format": ""}, same),
    ({"format": "json"}, lambda a, _: text_of(a).startswith("{")),
    ({"format": YES}, lambda a, _: text_of(a) == '"yes"'),
    ({"format": "xml"}, rejected("format")),
    ({"format": {"type": "nothing"}}, rejected("")),
    ({"think": True}, same),  # the template of this model has no choice
    ({"think": "low"}, differs),  # the template renders the effort
    ({"logprobs": True}, lambda a, p: len(a["logprobs"]) == a["eval_count"] and "logprobs" not in p),
    (
        {"logprobs": True, "top_logprobs": 3},
        lambda a, _: {len(entry["top_logprobs"]) for entry in a["logprobs"]} == {3},
    ),
    ({"top_logprobs": 3}, rejected("top_logprobs")),
    ({"keep_alive": "5m"}, same),
    ({"keep_alive": 0}, same),
    ({"octavo": True}, lambda a, p: "octavo" in a and "octavo" not in p),
    ({"priority": -3}, same),
    ({"timeout": 30}, same),
    ({"cache_salt": "s"}, same),
    ({"an_unknown_field": [1, {"x": None}]}, same),
]

OF_CHAT: list[tuple[JsonObject, Effect]] = [
    ({"messages": [{"role": "user", "content": "goodbye"}]}, differs),
    ({"messages": [HELLO[0] | {"images": ["aGk="]}]}, rejected("an image")),
    ({"messages": [HELLO[0] | {"images": []}]}, same),
    ({"messages": [{"role": "wizard", "content": ""}]}, rejected("messages[0].role")),
    ({"messages": []}, lambda a, _: a["done_reason"] == "load"),
    ({"tools": [TOOL]}, differs),
    ({"tools": []}, same),
]
OF_GENERATE: list[tuple[JsonObject, Effect]] = [
    ({"prompt": "goodbye"}, differs),
    ({"prompt": ""}, lambda a, _: a["done_reason"] == "load"),
    ({"system": "Be brief."}, differs),
    ({"system": ""}, same),
    ({"raw": True}, differs),
    ({"raw": False}, same),
    ({"suffix": "x"}, rejected("no tokens to fill in the middle")),
    ({"suffix": ""}, same),
    ({"raw": True, "suffix": "x"}, rejected("suffix with raw")),
    ({"raw": True, "system": "x"}, rejected("system with raw")),
    ({"raw": True, "think": True}, rejected("think with raw")),
    ({"template": "{{ .Prompt }}"}, rejected("template")),
    ({"template": "", "context": [], "images": []}, same),
    ({"context": [1, 2]}, rejected("context")),
    ({"images": ["aGk="]}, rejected("images")),
    ({"width": 5}, rejected("width")),
    ({"height": 5}, rejected("height")),
    ({"steps": 5}, rejected("steps")),
]
CASES = [
    *((path, change, effect) for path in (CHAT, GENERATE) for change, effect in OF_BOTH),
    *((CHAT, change, effect) for change, effect in OF_CHAT),
    *((GENERATE, change, effect) for change, effect in OF_GENERATE),
]


@pytest.mark.parametrize(("path", "change", "effect"), CASES, ids=case_id)
def test_every_field_has_its_effect(server: Server, path: str, change: JsonObject, effect: Effect) -> None:
    plain = ask(server, path)
    if change.get("prompt") == "" or change.get("messages") == []:
        loaded = server.post(path, BASE[path] | change).json()
        assert effect(loaded, plain)
        assert text_of(loaded) == ""
        return
    for stream in (False, True):
        answer = ask(server, path, stream=stream, **change)
        assert effect(answer, plain), (answer, plain)


@pytest.mark.parametrize(("change", "beside", "effect"), OPTIONS, ids=case_id)
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_every_option_has_its_effect(
    server: Server, path: str, change: JsonObject, beside: JsonObject, effect: Effect
) -> None:
    plain = ask(server, path, options=beside)
    answer = ask(server, path, options=beside | change)
    assert effect(answer, plain), (answer, plain)


def test_every_field_has_a_case() -> None:
    tested = {path: {name for p, change, _ in CASES if p == path for name in change} for path in BASE}
    assert set(OllamaChat.model_fields) - tested[CHAT] == {"stream", "options"}
    assert set(OllamaCompletion.model_fields) - tested[GENERATE] == {"stream", "options"}
    assert set(OllamaOptions.model_fields) - {name for change, *_ in OPTIONS for name in change} == set()


# -- the model, and errors ---------------------------------------------------------------------------------


def test_the_model_is_described(server: Server) -> None:
    (listed,) = server.get("/api/tags").json()["models"]
    (running,) = server.get("/api/ps").json()["models"]
    assert listed["name"] == listed["model"] == running["name"] == "tiny"
    assert listed.items() <= (running | {"size": listed["size"]}).items()
    assert 0 < listed["size"] < running["size"]
    assert running["context_length"] == 512
    shown = server.post("/api/show", {"model": "tiny:latest"}).json()
    assert shown == server.post("/api/show", {"name": "tiny"}).json()
    assert "message.role" in shown["template"]
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] == 512
    assert shown["capabilities"] == ["completion", "tools"]
    assert server.get("/api/version").json()["version"]


def check(answer: httpx.Response, status: int, text: str) -> None:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert text in answer.json()["error"]
    assert answer.headers["x-request-id"].startswith("req_")


def test_errors_have_the_form_of_the_api(server: Server) -> None:
    for path, body in BASE.items():
        check(server.post(path, body | {"stream": "yes"}), 400, "stream")
        check(server.post(path, body | {"options": {"repeat_penalty": 0}}), 400, "repeat_penalty must be")
        check(httpx.post(server.url + path, data={"a": "b"}), 415, "Content-Type: application/json")
        check(server.get(path), 405, "does not support that method")
    too_long = server.post(GENERATE, {"prompt": "x" * 600, "raw": True})
    check(too_long, 400, "maximum context length is 512 tokens")
    check(server.post("/api/nothing", {}), 404, "no such endpoint")
    check(server.post("/api/show", {}), 400, "model is missing")
    for name in ("pull", "push", "create", "copy", "delete", "embed", "embeddings"):
        check(server.post(f"/api/{name}", {"model": "tiny"}), 404, f"does not have /api/{name}: ")


def test_errors_of_keys(start: StartServer) -> None:
    server = start("--api-key", "secret").wait_until_ready()
    check(httpx.get(server.url + "/api/tags"), 401, "key")
    allowed = {"authorization": "Bearer secret"}
    assert httpx.get(server.url + "/api/tags", headers=allowed).status_code == 200


def test_an_error_in_a_stream_is_its_last_line(run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        body = {"prompt": "x", "raw": True, "timeout": 0.3}
        answer = await bench.ask(GENERATE, body).done()
        assert answer.status == 200
        *parts, last = lines_of(answer.content)
        assert parts
        assert not any(part["done"] for part in parts)
        assert last == {"error": "the request did not finish before its deadline"}

    run_null(test, max_model_len=1 << 20, step_seconds=0.01)


def test_a_repeated_request_gets_the_same_lines(run_null: RunNull) -> None:
    """With an Idempotency-Key, as in other APIs: the framing of the kept answer is that of lines."""

    async def test(bench: Bench) -> None:
        headers = ((b"idempotency-key", b"k"),)
        body = {"prompt": "x", "options": {"num_predict": 5}}
        first, second = [await Exchange(bench.app, GENERATE, body, headers).done() for _ in range(2)]
        assert first.content == second.content
        assert second.headers["content-type"] == "application/x-ndjson"
        assert second.headers["idempotency-replayed"] == "true"

    run_null(test)
