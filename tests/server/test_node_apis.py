"""Node clients of messages and responses against a model that always calls the tool it is given."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients.rules import GREETING, RESULT, calculator
from data.json_types import Json
from server.node import run_node
from server.scripted import ScriptedServer, scripted_server

pytestmark = [pytest.mark.assets, pytest.mark.xdist_group("server")]

PROGRAMS = Path(__file__).parents[1] / "clients" / "programs"
EXPECTED = {"plain": GREETING, "streamed": GREETING, "arguments": {"a": 2, "b": 3}, "result": RESULT}


def answer(prompt: str) -> str:
    return '{"sum": 5}' if "As JSON" in prompt else calculator(prompt)


@pytest.fixture(scope="module")
def scripted(assets: Callable[[str], Path]) -> Iterator[ScriptedServer]:
    with scripted_server(assets("tokenizer-qwen2.5"), answer) as server:
        yield server


def run(name: str, folder: Path, server: ScriptedServer) -> Json:
    return run_node(PROGRAMS / name, folder, server.url.removesuffix("/v1"))


def test_anthropics_client(scripted: ScriptedServer, node_folder: Path) -> None:
    seen = run("anthropic.mjs", node_folder, scripted)
    assert seen["found"] == {"messages": EXPECTED}
    assert (seen["last"]["text"], seen["last"]["stop"]) == (GREETING, "end_turn")
    assert seen["counted"] == len(scripted.prepared[0].prompt_ids)
    usage = seen["last"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == seen["counted"]
    assert (seen["calls"], seen["result"]) == ([EXPECTED["arguments"]] * 2, RESULT)
    assert seen["models"] == ["scripted"]
    assert seen["refused"] == {"kind": "NotFoundError", "status": 404, "type": "not_found_error"}


def test_openais_client_uses_responses(scripted: ScriptedServer, node_folder: Path) -> None:
    seen = run("responses.mjs", node_folder, scripted)
    assert seen["found"] == {"responses": EXPECTED}
    assert seen["last"] == {"text": GREETING, "status": "completed"}
    assert seen["stored"] == seen["first"]
    assert seen["items"] == ["function_call_output"], "the input of the last response alone"
    assert seen["parsed"] == {"sum": 5}


def test_the_vercel_ai_sdk_uses_both(scripted: ScriptedServer, node_folder: Path) -> None:
    seen = run("vercel_apis.mjs", node_folder, scripted)
    for api in ("messages", "responses"):
        assert seen["found"][api] == {**EXPECTED, "streamed_result": RESULT, "warnings": []}
