"""/openapi.json allows every request that the server accepts. `server.recording` checks the requests of all
tests; this file has the cases that once failed, and shows that the check finds violations."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data.engine_facts import engine_facts
from data.json_types import JsonObject
from octavo.config import ServerOptions
from octavo.frontend.text_model import TextModel
from octavo.server.app import build_app
from octavo.server.http.keys import Keys
from octavo.server.openapi import describe
from octavo.server.state import ServerState
from server.fake_replicas import FakeReplicas
from server.hostile import CHAT, COMPLETIONS, GOOD
from server.null_bench import Bench
from server.process import StartServer
from server.recording import (
    Accepted,
    Description,
    octavo_command,
    problems,
    problems_in,
    read_requests,
    take_problems,
)
from server.scripted import served_tokenizer

pytestmark = pytest.mark.xdist_group("server")

RunNull = Callable[..., None]
Body = JsonObject

TOOL: Body = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True},
}
NAMED: Body = {"type": "function", "function": {"name": "add"}}
CALL: Body = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
SCHEMA: Body = {"type": "object", "properties": {"a": {"type": "integer"}}}

ALLOWED: dict[str, Body] = {
    "tools": {"tools": [TOOL]},
    "no tools": {"tools": [], "tool_choice": "none"},
    "a call that is required": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "a call that is named": {"tools": [TOOL], "tool_choice": NAMED},
    "a conversation with calls": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "input_text", "text": "+"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "tool_call_id": "call_1"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "refusal": "no"},
        ],
        "tools": [TOOL],
    },
    "text": {"response_format": {"type": "text"}},
    "an object": {"response_format": {"type": "json_object"}},
    "a schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
        }
    },
    "a bare schema": {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": None}},
    "one constraint, the others null": {
        "structured_outputs": {"json": None, "regex": "a+", "choice": None, "grammar": None}
    },
    "a constraint, and a field of another server": {
        "structured_outputs": {"json": SCHEMA, "whitespace_pattern": None}
    },
    "usage of a stream": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": None, "other": 1},
    },
}
NOT_ALLOWED: dict[str, Body] = {
    "a choice without tools": {"tool_choice": "required"},
    "a tool of another kind": {"tools": [{"type": "web_search"}]},
    "a schema that is missing": {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
    "two constraints": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
    "a message that says nothing": {"messages": [{"role": "assistant", "tool_calls": []}]},
    "old functions": {"functions": [{"name": "add"}]},
}


@pytest.fixture
def description(run_null: RunNull) -> Description:
    found: Description = {}

    async def take(bench: Bench) -> None:
        found.update(describe(bench.app, bench.state))

    run_null(take)
    return found


def found_in(description: Description, path: str, *bodies: Body) -> list[str]:
    return list(problems(description, [Accepted(path, json.dumps(body)) for body in bodies]))


def test_accepted_requests_conform_to_the_description(description: Description) -> None:
    chats = [GOOD[CHAT] | fields for fields in ALLOWED.values()]
    assert found_in(description, CHAT, *chats) == []
    completions = ({"best_of": 2, "n": 2}, {"response_format": {"type": "json_object"}}, {"suffix": ""})
    assert found_in(description, COMPLETIONS, *(GOOD[COMPLETIONS] | fields for fields in completions)) == []


def test_rejected_requests_violate_the_description(description: Description, run_null: RunNull) -> None:
    async def test(bench: Bench) -> None:
        for name, fields in NOT_ALLOWED.items():
            assert found_in(description, CHAT, GOOD[CHAT] | fields), name
            assert (await bench.ask(CHAT, GOOD[CHAT] | fields).done()).status == 400, name

    run_null(test)


def narrowed(description: Description) -> Description:
    """Lower the maximum number of tokens below what the test requests."""
    narrow = copy.deepcopy(description)
    content = narrow["paths"][COMPLETIONS]["post"]["requestBody"]["content"]["application/json"]
    content["schema"]["properties"]["max_tokens"] = {"maximum": 1}
    return narrow


def test_the_check_finds_violations(description: Description) -> None:
    assert not found_in(description, COMPLETIONS, GOOD[COMPLETIONS])
    (problem,) = found_in(narrowed(description), COMPLETIONS, GOOD[COMPLETIONS])
    assert problem.startswith(f"{COMPLETIONS} accepts what /openapi.json does not allow, max_tokens: 2 is ")


def test_an_application_in_this_process_is_checked(
    run_null: RunNull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.server.openapi.describe", lambda *known: narrowed(describe(*known)))

    async def test(bench: Bench) -> None:
        for max_tokens in (1, 2, 2, 3):
            answer = await bench.ask(COMPLETIONS, {"prompt": "x", "max_tokens": max_tokens}).done()
            assert answer.status == 200
        assert (await bench.ask(COMPLETIONS, {"prompt": "x", "max_tokens": -1}).done()).status == 400

    run_null(test)
    found = take_problems()
    assert ["max_tokens: 2 is" in problem for problem in found] == [True, False], "each body is reported once"


def test_a_server_in_a_process_of_its_own_is_checked(start: StartServer, tmp_path: Path) -> None:
    server = start("--served-model-name", "tiny").wait_until_ready()
    bodies = [GOOD[COMPLETIONS], GOOD[COMPLETIONS] | {"stream": True}]
    for body in bodies * 2:
        assert server.post(COMPLETIONS, body).status_code == 200
    assert server.post(COMPLETIONS, {"prompt": 1}).status_code == 400
    description, accepted = read_requests(server.requests_path)
    assert description == server.get("/openapi.json").json()
    assert [(path, json.loads(body)) for path, body in accepted] == [(COMPLETIONS, body) for body in bodies]
    assert not problems_in(server.requests_path)
    other = tmp_path / "narrowed.requests"
    lines = server.requests_path.read_text().splitlines()
    other.write_text("\n".join([json.dumps(narrowed(description)), *lines[1:], '["unfinished']))
    assert len(problems_in(other)) == len(bodies)


def test_an_unrecorded_server_runs_the_plain_command(tmp_path: Path) -> None:
    assert octavo_command(None)[1:] == ["-m", "octavo.cli.main"]
    assert not problems_in(tmp_path / "nothing.requests")


def described(model: TextModel, vocab_size: int) -> Description:
    """Return the description of a server whose model has `vocab_size` tokens; its tokenizer may have more."""
    replicas = FakeReplicas(engine_facts(vocab_size=vocab_size))
    state = ServerState(ServerOptions(), model, replicas)  # type: ignore[arg-type]
    try:
        return describe(build_app(state, Keys()), state)
    finally:
        state.close()


def test_detokenize_accepts_the_ids_of_the_tokenizer(tiny_model: TextModel) -> None:
    last = tiny_model.tokenizer.vocab_size - 1
    description = described(tiny_model, vocab_size=10)
    assert not found_in(description, "/detokenize", {"tokens": [0, last]})
    assert found_in(description, "/detokenize", {"tokens": [last + 1]})
    assert found_in(description, COMPLETIONS, {"prompt": [last]}), "the model has no such token"


@pytest.mark.assets
def test_an_empty_prompt_is_allowed_if_the_tokenizer_adds_a_token(
    tiny_model: TextModel, assets: Callable[[str], Path]
) -> None:
    begins = served_tokenizer(assets("tokenizer-llama3.2"))
    for model, is_allowed in ((begins, True), (tiny_model, False)):
        assert bool(model.tokenizer.encode("")) == is_allowed
        found = found_in(described(model, vocab_size=1 << 20), COMPLETIONS, {"prompt": ["a", ""]})
        assert (not found) == is_allowed
