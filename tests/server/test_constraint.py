"""Constraints of requests: which grammar the engine receives, and which texts it accepts."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from data.json_types import Json, JsonObject
from octavo.grammar.compiler import compile_grammar
from octavo.grammar.specs import of_schema
from octavo.grammar.vocabulary import Vocabulary, vocabulary_of
from octavo.protocol import GrammarSpec
from octavo.text.tokenizer import Tokenizer
from server.scripted import ScriptedServer, scripted_server, served_tokenizer

pytestmark = pytest.mark.assets

NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA, NOBODY = '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": "old"}'
QUESTION: ChatCompletionUserMessageParam = {"role": "user", "content": "Well?"}


def tool(name: str, **more: Json) -> JsonObject:
    return {"type": "function", "function": {"name": name, "parameters": NUMBERS} | more}


TOOLS = [tool("add"), tool("multiply")]


class Grammars:
    """Servers by model family, the grammars that they send to the engine, and the texts these accept."""

    def __init__(self, assets: Callable[[str], Path]) -> None:
        self._assets = assets
        self._running: dict[str, tuple[AbstractContextManager[ScriptedServer], ScriptedServer]] = {}
        self._vocabularies: dict[str, tuple[Tokenizer, Vocabulary]] = {}

    def server(self, name: str) -> ScriptedServer:
        if name not in self._running:
            context = scripted_server(self._assets(name))
            self._running[name] = context, context.__enter__()
        return self._running[name][1]

    def asked(self, name: str, **fields: Json) -> GrammarSpec | None:
        """Return the grammar of a chat request. The answer does not matter."""
        server = self.server(name)
        server.says("")
        self._client(server).chat.completions.create(model="scripted", messages=[QUESTION], **fields)
        return server.prepared[-1].params.grammar

    def completion(self, name: str, **fields: Json) -> GrammarSpec | None:
        server = self.server(name)
        server.says("")
        self._client(server).completions.create(model="scripted", prompt="Well?", **fields)
        return server.prepared[-1].params.grammar

    def takes(self, name: str, spec: GrammarSpec | None, text: str) -> bool:
        """Return whether the grammar accepts the text as a complete answer."""
        if name not in self._vocabularies:
            tokenizer = served_tokenizer(self._assets(name)).tokenizer
            self._vocabularies[name] = tokenizer, vocabulary_of(tokenizer, tokenizer.vocab_size)
        tokenizer, vocabulary = self._vocabularies[name]
        assert spec is not None
        matcher = compile_grammar(spec, vocabulary).new_matcher()
        ids = tokenizer.encode(text, add_special_tokens=False)
        return all(matcher.consume_token(token_id) for token_id in ids) and matcher.is_accepting()

    def close(self) -> None:
        for context, _ in self._running.values():
            context.__exit__(None, None, None)

    def _client(self, server: ScriptedServer) -> openai.OpenAI:
        return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def grammars(assets: Callable[[str], Path]) -> Iterator[Grammars]:
    grammars = Grammars(assets)
    yield grammars
    grammars.close()


def call_of(name: str, function: str, arguments: str) -> str:
    """Return a call in the model's syntax. Mistral's special token is in the prompt; Gemma writes JSON."""
    key = "parameters" if "llama" in name or "gemma" in name else "arguments"
    call = f'{{"name": "{function}", "{key}": {arguments}}}'
    if "qwen" in name:
        return f"<tool_call>\n{call}\n</tool_call>"
    return f"[{call}]" if "mistral" in name else call


FAMILIES = ["tokenizer-qwen2.5", "tokenizer-llama3.2", "tokenizer-mistral-nemo", "tokenizer-gemma3"]
VALID, INVALID = '{"a": 1, "b": 2.5}', '{"a": 1, "b": "x"}'


@pytest.mark.parametrize("name", FAMILIES)
def test_a_required_call(name: str, grammars: Grammars) -> None:
    spec = grammars.asked(name, tools=TOOLS, tool_choice="required")
    assert grammars.takes(name, spec, call_of(name, "add", VALID))
    assert grammars.takes(name, spec, call_of(name, "multiply", VALID))
    for wrong in (call_of(name, "add", INVALID), call_of(name, "divide", VALID), "No.", ""):
        assert not grammars.takes(name, spec, wrong)
    assert grammars.server(name).last_prompt.endswith("[TOOL_CALLS]") == ("mistral" in name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_named_call(name: str, grammars: Grammars) -> None:
    choice: Json = {"type": "function", "function": {"name": "multiply"}}
    spec = grammars.asked(name, tools=TOOLS, tool_choice=choice)
    assert grammars.takes(name, spec, call_of(name, "multiply", VALID))
    assert not grammars.takes(name, spec, call_of(name, "add", VALID))


@pytest.mark.parametrize(("name", "between"), [("tokenizer-qwen2.5", "\n"), ("tokenizer-mistral-nemo", ", ")])
def test_parallel_and_single_calls(name: str, between: str, grammars: Grammars) -> None:
    both = [call_of(name, function, VALID) for function in ("add", "multiply")]
    if "mistral" in name:
        text = f"[{between.join(call[1:-1] for call in both)}]"
    else:
        text = between.join(both)
    several = grammars.asked(name, tools=TOOLS, tool_choice="required")
    assert grammars.takes(name, several, text)
    one = grammars.asked(name, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert not grammars.takes(name, one, text)


def test_strict_tools_do_not_constrain_text(grammars: Grammars) -> None:
    name = "tokenizer-qwen2.5"
    spec = grammars.asked(name, tools=[tool("add", strict=True), tool("multiply")])
    for text in ("Nothing to add.", "", "a < b <tool", f"So:\n{call_of(name, 'add', VALID)}"):
        assert grammars.takes(name, spec, text)
    assert not grammars.takes(name, spec, call_of(name, "add", INVALID))
    assert grammars.takes(name, spec, call_of(name, "multiply", INVALID)), "this tool is not strict"
    assert grammars.asked(name, tools=TOOLS) is None


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        {"type": "json_schema", "schema": PERSON},
    ],
)
def test_every_way_to_request_a_schema(response_format: Json, grammars: Grammars) -> None:
    name = "tokenizer-qwen2.5"
    for spec in (
        grammars.asked(name, response_format=response_format),
        grammars.completion(name, extra_body={"response_format": response_format}),
    ):
        assert grammars.takes(name, spec, ADA)
        assert not grammars.takes(name, spec, NOBODY)


def test_any_object(grammars: Grammars) -> None:
    name = "tokenizer-qwen2.5"
    spec = grammars.asked(name, response_format={"type": "json_object"})
    assert grammars.takes(name, spec, NOBODY)
    assert not grammars.takes(name, spec, "[1]")
    assert grammars.asked(name, response_format={"type": "text"}) is None


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ({"regex": "[0-9]{3}-[a-z]+"}, "123-abc", "12-abc"),
        ({"choice": ["red", "dark green"]}, "dark green", "green"),
        ({"grammar": 'start: "a" start "b" | "ab"'}, "aaabbb", "aaabb"),
        ({"json": PERSON}, ADA, NOBODY),
        ({"json": json.dumps(PERSON)}, ADA, NOBODY),
    ],
)
def test_structured_outputs(wanted: Json, right: str, wrong: str, grammars: Grammars) -> None:
    name = "tokenizer-qwen2.5"
    for ask in (grammars.asked, grammars.completion):
        spec = ask(name, extra_body={"structured_outputs": wanted})
        assert grammars.takes(name, spec, right)
        assert not grammars.takes(name, spec, wrong)


def test_reasoning_is_not_constrained(grammars: Grammars) -> None:
    name = "tokenizer-qwen3"
    spec = grammars.asked(name, response_format={"type": "json_schema", "schema": PERSON})
    assert grammars.takes(name, spec, f"<think>\nHm, {NOBODY}\n</think>\n\n{ADA}")
    assert grammars.takes(name, spec, ADA)
    assert not grammars.takes(name, spec, f"<think>\nHm.\n</think>\n\n{NOBODY}")
    assert not grammars.takes(name, spec, f"Hm. {ADA}")
    required = grammars.asked(name, tools=TOOLS, tool_choice="required")
    assert grammars.takes(name, required, f"<think>\n\n</think>\n\n{call_of(name, 'add', VALID)}")


def test_a_schema_or_calls(grammars: Grammars) -> None:
    name = "tokenizer-qwen2.5"
    spec = grammars.asked(
        name,
        tools=TOOLS,
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}},
    )
    assert grammars.takes(name, spec, ADA)
    assert grammars.takes(name, spec, call_of(name, "add", VALID))
    for wrong in (NOBODY, call_of(name, "add", INVALID), "No."):
        assert not grammars.takes(name, spec, wrong)


def test_a_plain_schema_is_passed_on_unchanged(grammars: Grammars) -> None:
    """Equal schemas therefore share one entry in every grammar cache."""
    spec = grammars.asked("tokenizer-qwen2.5", response_format={"type": "json_schema", "schema": PERSON})
    assert spec == of_schema(PERSON)


UNKNOWN = {"type": "object", "unevaluatedProperties": False}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"response_format": {"type": "json_schema", "schema": UNKNOWN}},
            "response_format.schema",
            "unevaluated",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.schema", "missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", r"\w"),
        (
            {"tools": [tool("add", parameters=UNKNOWN, strict=True)]},
            "tools[0].function.parameters",
            "unevaluated",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex", r"\w"),
        (
            {"extra_body": {"structured_outputs": {"grammar": "start: other"}}},
            "structured_outputs.grammar",
            "",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}},
            "structured_outputs",
            "one of",
        ),
        (
            {"extra_body": {"structured_outputs": {"json": '{"minLength": ' + "9" * 401 + "}"}}},
            "structured_outputs.json",
            "minLength",
        ),
        ({"extra_body": {"structured_outputs": {"choice": []}}}, "structured_outputs.choice", r"\w"),
        (
            {
                "response_format": {"type": "json_object"},
                "extra_body": {"structured_outputs": {"regex": "a"}},
            },
            "structured_outputs",
            "not both",
        ),
        (
            {"tools": TOOLS, "extra_body": {"structured_outputs": {"regex": "a"}}},
            "structured_outputs.regex",
            "tools",
        ),
    ],
)
def test_invalid_constraints_are_rejected(
    fields: JsonObject, param: str, words: str, grammars: Grammars
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        grammars.asked("tokenizer-qwen2.5", **fields)
    grammars.server("tokenizer-qwen2.5").script.clear()
    assert caught.value.param == param


@pytest.mark.parametrize("name", [*FAMILIES, "tokenizer-qwen3"])
def test_every_text_that_the_grammar_allows_can_be_parsed(name: str, grammars: Grammars) -> None:
    """With a format and tools, an answer is JSON or a call, and the parser distinguishes them."""
    wanted: Json = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    server = grammars.server(name)
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    tagged = call_of("qwen", "add", VALID)  # the first character distinguishes it from JSON
    for text, num_calls in ((tagged, 1), (ADA, 0)):
        server.says(text)
        asked: JsonObject = {
            "model": "scripted",
            "messages": [QUESTION],
            "tools": TOOLS,
            "response_format": wanted,
        }
        message = client.chat.completions.create(**asked).choices[0].message
        assert grammars.takes(name, server.prepared[-1].params.grammar, text)
        assert len(message.tool_calls or []) == num_calls
        assert message.content == (None if num_calls else ADA)


def test_a_large_tool_and_a_description_with_braces(grammars: Grammars) -> None:
    """Grammars that the server generates are exempt from the limits on grammars of clients."""
    name = "tokenizer-qwen2.5"
    properties = {f"p{n}": {"type": "integer", "description": "at most {20000} ((("} for n in range(100)}
    large = tool(
        "add", parameters={"type": "object", "properties": properties, "additionalProperties": False}
    )
    spec = grammars.asked(name, tools=[large], tool_choice="required")
    assert grammars.takes(name, spec, call_of(name, "add", '{"p3": 1, "p99": 2}'))
    assert not grammars.takes(name, spec, call_of(name, "add", '{"p100": 1}'))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [tool("add", parameters={"type": "object", "properties": 5})]},
        {"tools": TOOLS, "extra_body": {"structured_outputs": {"json": "true"}}},
    ],
)
def test_unusual_but_valid_requests_are_accepted(fields: JsonObject, grammars: Grammars) -> None:
    grammars.asked("tokenizer-qwen2.5", **fields)
