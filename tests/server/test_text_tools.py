"""Tools whose input is text that conforms to a grammar: what the model sees, may write, and sees again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.json_types import Json, JsonObject
from octavo.errors import GrammarError
from octavo.frontend.chat import ChatTask, compose
from octavo.frontend.intake import PromptTask
from octavo.frontend.text_model import TextModel
from octavo.frontend.tool_use import OnlyTool, TextTool, ToolChoice
from octavo.grammar.compiler import CompiledGrammar, compile_grammar
from octavo.grammar.limits import MAX_ITEMS_IN_ROW_BESIDE_LARK, MAX_ITEMS_IN_ROW_OF_LARK, row_limit
from octavo.grammar.specs import of_schema
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary, vocabulary_of
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams
from server.response_events import ADD, call_text, events_in
from server.scripted import ScriptedServer, scripted_server, served_tokenizer

pytestmark = pytest.mark.assets

# As coding agents send it.
PATCH_GRAMMAR = """\
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: "*** Update File: " filename LF change
filename: /(.+)/
change: (change_context | change_line)+
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF -> line
%import common.LF
"""
PATCH = """\
*** Begin Patch
*** Update File: add.py
@@ def add(a, b):
-    return a - b
+    return "a\\n" + b
*** End Patch"""
PATCH_TOOL: JsonObject = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
LARK, REGEX = GrammarKind.LARK, GrammarKind.REGEX
FUNCTION: JsonObject = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
QUESTION: JsonObject = {"role": "user", "content": "Well?"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
OPENING = '<tool_call>\n{"name": "write"}\n'

# -- the grammar of the answer -----------------------------------------------------------------------------

# Grammars over few characters, those that calls and tags consist of among them.
INPUTS: dict[str, tuple[GrammarKind, str, str]] = {  # with a text that conforms
    "nothing": (LARK, "start: ", ""),
    "nested": (LARK, 'start: "<" start ">" | "a"', "<<a>>"),
    "anything": (LARK, "start: /(.|\\n)*/", f"{OPENING}{CALL}\n"),
    "lines": (LARK, "start: line+\nline: /[^\\n]*/ LF\n%import common.LF", "\n<tool_call>\n"),
    "no line end at the end": (LARK, "start: /[a>]+/ (LF /[a>]+/)*\n%import common.LF\n// }", "a\n>"),
    "ignored": (LARK, 'start: "a" ("<" "a")* ">"\n%ignore /\\n/', "a\n<a\n>"),
    "JSON": (LARK, "start: %json " + json.dumps({"type": "array", "items": {"const": "a"}}), '["a", "a"]'),
    "a tag": (LARK, 'start: ("</tool_call>" | "<tool_call>" | "a")+', "a</tool_call>"),
    "a regex": (REGEX, "(a/)*[<>{}\\n]{2}\\/", "a/a/}\n/"),
}
words = st.lists(
    st.sampled_from([*'ab<>/{}":\n', "</tool_call>", "<tool_call>", '{"a": "a"}', "a>\n", "//\n"]), max_size=8
).map("".join)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="module")
def qwen(assets: Callable[[str], Path]) -> TextModel:
    return served_tokenizer(assets("tokenizer-qwen2.5"))


def composed(model: TextModel, spec: GrammarSpec, **task: Any) -> PromptTask:
    tool = TextTool("write", "Writes.", spec, "tools[1].format.definition")
    return compose(ChatTask([QUESTION], SamplingParams(), text_tools=[tool], **task), model)


def takes(grammar: CompiledGrammar, text: str) -> bool:
    """Return whether the text, as bytes, is a complete answer."""
    matcher = grammar.new_matcher()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize("name", INPUTS)
def test_the_input_of_a_call_is_exactly_what_its_grammar_accepts(
    qwen: TextModel, vocabulary: Vocabulary, name: str
) -> None:
    """Whatever comes before the call, and whether or not a call is required."""
    kind, definition, conforming = INPUTS[name]
    spec = GrammarSpec(kind, definition)
    alone = compile_grammar(spec, vocabulary)
    bare = '{"name": "write"}\n'
    required: JsonObject = {"tools": [FUNCTION], "tool_choice": ToolChoice.REQUIRED}
    ways: list[tuple[JsonObject, list[str]]] = [
        ({"tools": [FUNCTION]}, [OPENING, bare, f"So:\n```json\n{bare}", f"{CALL}\nand {CALL}\n{OPENING}"]),
        ({}, [OPENING, f"So:\n{OPENING}"]),
        (required, [OPENING, f"{CALL}\n{CALL}\n{OPENING}"]),
        (required | {"allows_several_calls": False}, [OPENING]),
        ({"tools": [FUNCTION], "tool_choice": OnlyTool("write")}, [OPENING]),
    ]
    compiled = []
    for task, before in ways:
        made = composed(qwen, spec, **task).params.grammar
        assert made is not None
        assert MAX_ITEMS_IN_ROW_OF_LARK <= row_limit(made) < 2 * MAX_ITEMS_IN_ROW_OF_LARK
        compiled.append((compile_grammar(made, vocabulary), before))

    def check(text: str, expected: bool) -> None:
        for grammar, before in compiled:
            for beginning in before:
                assert takes(grammar, beginning + text) == expected, (beginning, text)

    @settings(deadline=None, max_examples=30)
    @given(words)
    def compare(text: str) -> None:
        check(text, takes(alone, text))

    compare()
    check(conforming, True)
    if name != "anything":
        check(f"{conforming}b", False)


def test_tokens_may_end_anywhere(qwen: TextModel) -> None:
    """Where the grammar of the input begins is no boundary of tokens."""
    vocabulary = vocabulary_of(qwen.tokenizer, qwen.tokenizer.vocab_size)
    for kind, definition, conforming in INPUTS.values():
        spec = composed(qwen, GrammarSpec(kind, definition), tools=[FUNCTION]).params.grammar
        assert spec is not None
        grammar = compile_grammar(spec, vocabulary)
        for before in ("", f"{CALL}\n"):
            matcher = grammar.new_matcher()
            for token_id in qwen.tokenizer.encode(before + OPENING + conforming, add_special_tokens=False):
                assert matcher.consume_token(token_id), definition
            assert matcher.is_accepting()


def test_what_else_an_answer_may_be(qwen: TextModel, vocabulary: Vocabulary) -> None:
    spec = GrammarSpec(LARK, 'start: "a"')

    def accepts(text: str, **task: Any) -> bool:
        made = composed(qwen, spec, tools=[FUNCTION], **task).params.grammar
        assert made is not None
        return takes(compile_grammar(made, vocabulary), text)

    assert accepts("Hello.")
    assert accepts(f"{CALL} and that was it.")
    for bare in ("", "```json\n", "So: ```json"):  # where some models write calls without a tag
        assert accepts(f'{bare}{{\n  "name": "write"}}\na')
        assert not accepts(f'{bare}{{\n  "name": "write"}}\nb')
        for other in ("other", "writer", "wri"):
            assert accepts(f'{bare}{{"name": "{other}"}}\nb')
        assert not accepts(f'{bare}{{"name": "write_tool"}}\nb'), "as models that want to write arguments"
    assert accepts('So: {"name": "write"}\nb'), "in other text, it is no call"
    assert not accepts("<tool_call>b")
    assert not accepts('<tool_call>\n{"name": "write", "arguments": {"input": "b"}}\n</tool_call>')
    assert not accepts(f"{OPENING}a\n</tool_call>"), "the input ends with the answer"
    required: JsonObject = {"tool_choice": ToolChoice.REQUIRED}
    assert accepts(CALL, **required)
    assert not accepts("Hello.", **required)
    assert not accepts(f"{CALL}\n{OPENING}a", **required, allows_several_calls=False)
    schema = SamplingParams(grammar=of_schema({"const": 7}))
    tool = TextTool("write", "", spec, "f")
    task = ChatTask([QUESTION], schema, tools=[FUNCTION], text_tools=[tool])
    either = compose(task, qwen).params.grammar
    assert either is not None
    grammar = compile_grammar(either, vocabulary)
    assert [takes(grammar, text) for text in ("7", CALL, f"{OPENING}a", f"{OPENING}b", "8")] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("choice", [ToolChoice.AUTO, ToolChoice.REQUIRED])
def test_large_functions_beside_a_text_tool(
    qwen: TextModel, vocabulary: Vocabulary, choice: ToolChoice
) -> None:
    """The limit for grammars of clients is lower than that for schemas."""
    large = {f"p{number}": {"type": "integer"} for number in range(200)}
    schema: JsonObject = {"anyOf": [{"type": "object", "properties": large, "additionalProperties": False}]}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    tools += [{"type": "function", "function": {"name": f"f{number}"}} for number in range(200)]
    spec = composed(qwen, GrammarSpec(LARK, 'start: "a"'), tools=tools, tool_choice=choice).params.grammar
    assert spec is not None
    arguments = '{"p150": 1, "p199": 2}'
    call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    grammar = compile_grammar(spec, vocabulary)
    matcher = grammar.new_matcher()
    for byte in call.encode():  # a mask needs more than a token
        matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        assert matcher.consume_token(byte)
    assert matcher.is_accepting()


def strict_function(number: int, *objects: int) -> JsonObject:
    """Return a function whose parameters are one of several objects, each with so many properties."""
    schemas: list[Json] = [
        {"type": "object", "properties": {f"{kind}{n}": {"type": "integer"} for n in range(count)}}
        for kind, count in zip("pqr", objects, strict=False)
    ]
    parameters: JsonObject = {"anyOf": schemas}
    return {"type": "function", "function": {"name": f"f{number}", "strict": True, "parameters": parameters}}


def test_alternatives_of_functions_beside_a_text_tool(qwen: TextModel, vocabulary: Vocabulary) -> None:
    """The properties of all alternatives may be next at the same position."""
    tools = [strict_function(0, 60, 60, 60)]
    made = composed(qwen, GrammarSpec(LARK, 'start: "a"'), tools=tools).params.grammar
    assert made is not None
    call = '<tool_call>\n{"name": "f0", "arguments": {"r59": 1}}\n</tool_call>'
    assert takes(compile_grammar(made, vocabulary), f"{call}\n{OPENING}a")


def test_functions_do_not_raise_the_limit_of_an_input(qwen: TextModel, vocabulary: Vocabulary) -> None:
    """The time for one token grows with the square of the items, and is the client's choice."""
    spec = GrammarSpec(LARK, 'start: s\ns: "a" | s s')  # another parse with each character

    def length(grammar: GrammarSpec, beginning: str = "") -> int:
        """Return after how many characters the input is too complex."""
        matcher = compile_grammar(grammar, vocabulary).new_matcher()
        assert all(map(matcher.consume_token, beginning.encode()))
        for number in range(2 * MAX_ITEMS_IN_ROW_OF_LARK):
            matcher.compute_bitmask()
            if matcher.is_error() or not matcher.consume_token(ord("a")):
                return number
        raise AssertionError("there is no limit")

    alone = length(spec)
    for choice in (ToolChoice.AUTO, ToolChoice.REQUIRED):
        tools = [strict_function(number, 20, 20) for number in range(40)]
        made = composed(qwen, spec, tools=tools, tool_choice=choice).params.grammar
        assert made is not None
        assert alone - 5 < length(made, OPENING) <= alone
        largest = composed(qwen, spec, tools=[strict_function(0, 600)], tool_choice=choice).params.grammar
        assert largest is not None
        assert row_limit(largest) == MAX_ITEMS_IN_ROW_BESIDE_LARK


@pytest.mark.parametrize(
    "definition",
    [
        'start: "a"\n}\nother: %lark {\nstart: "b"',  # would end the block that it is put into
        "start: @other",
        "start: text",
        "start: (",
    ],
    ids=["block", "another grammar", "another rule", "syntax"],
)
def test_a_definition_is_a_grammar_of_its_own(
    qwen: TextModel, vocabulary: Vocabulary, definition: str
) -> None:
    """The server checks the grammars of a request in order, the whole answer last."""
    task = composed(qwen, GrammarSpec(LARK, definition), tools=[FUNCTION])
    assert [part.field for part in task.grammars] == ["tools[1].format.definition", "tools"]
    with pytest.raises(GrammarError):
        compile_grammar(task.grammars[0].spec, vocabulary)


# -- the prompt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2.5", "llama3.2", "mistral-nemo", "gemma3"])
def test_later_prompts_repeat_the_call_as_the_model_wrote_it(
    assets: Callable[[str], Path], name: str
) -> None:
    """Models of every family write it in the same form, which none of their templates knows."""
    written = f"So:\n{CALL}\n{OPENING}a</tool_call>\n{{}}"
    call = {"id": "123456789", "type": "function"}
    calls = [
        call | {"function": {"name": "add", "arguments": '{"a": 1}'}},
        call
        | {"id": "987654321", "function": {"name": "write", "arguments": {"input": "a</tool_call>\n{}"}}},
    ]
    messages = [
        QUESTION,
        {"role": "assistant", "content": "So:", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "123456789", "content": "two"},
        {"role": "tool", "tool_call_id": "987654321", "content": "done"},
    ]
    tool = TextTool("write", "Writes.", GrammarSpec(LARK, "start: /.*/"), "f")
    task = ChatTask(messages, SamplingParams(), tools=[FUNCTION], text_tools=[tool])
    made = compose(task, served_tokenizer(assets(f"tokenizer-{name}")))
    assert isinstance(made.prompt, str)
    assert written in made.prompt
    after = made.prompt.partition(written)[2]
    assert after.index("two") < after.index("done")
    assert '"write", "description": "Writes.\\n' in made.prompt
    assert made.format is not None
    assert made.format.family == "strict"


def test_a_text_with_the_tag_of_reasoning_stays_in_its_call(assets: Callable[[str], Path]) -> None:
    """Some templates search the content of messages for reasoning."""
    text = "keep\n</think>\n\nx"
    call = {"id": "0", "type": "function", "function": {"name": "write", "arguments": {"input": text}}}
    messages = [QUESTION, {"role": "assistant", "content": "So:", "tool_calls": [call]}]
    tool = TextTool("write", "", GrammarSpec(LARK, "start: /(.|\\n)*/"), "f")
    task = ChatTask(messages, SamplingParams(), text_tools=[tool])
    prompt = compose(task, served_tokenizer(assets("tokenizer-qwen3"))).prompt
    assert f'So:\n<tool_call>\n{{"name": "write"}}\n{text}<|im_end|>' in str(prompt)


@pytest.mark.parametrize("arguments", [{}, {"input": 7}, [], "{}"], ids=["none", "number", "list", "text"])
def test_calls_without_a_text_stay_json(qwen: TextModel, arguments: Json) -> None:
    call = {"id": "0", "type": "function", "function": {"name": "write", "arguments": arguments}}
    messages = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tool = TextTool("write", "", GrammarSpec(LARK, "start: /.*/"), "f")
    prompt = compose(ChatTask(messages, SamplingParams(), text_tools=[tool]), qwen).prompt
    assert '{"name": "write", "arguments": ' in str(prompt)


# -- over HTTP ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(assets: Callable[[str], Path]) -> Iterator[ScriptedServer]:
    with scripted_server(assets("tokenizer-qwen2.5")) as running:
        yield running


def test_an_agent_patches_a_file(server: ScriptedServer) -> None:
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    written = f'I patch it.\n<tool_call>\n{{"name": "apply_patch"}}\n{PATCH}'
    server.says(written, "Done.")
    fields: JsonObject = {"model": "scripted", "tools": [ADD, PATCH_TOOL]}
    first = client.responses.create(input="Fix it.", **fields)
    text, call = first.output
    assert text.type == "message"
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("apply_patch", PATCH)
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"}
    second = client.responses.create(input=[result], previous_response_id=first.id, **fields)
    assert second.output_text == "Done."
    assert server.last_prompt.partition(written)[2].index("patched") > 0


def test_the_input_is_streamed_as_it_is_written(server: ScriptedServer) -> None:
    server.says(f'<tool_call>\n{{"name": "apply_patch"}}\n{PATCH}')
    body: JsonObject = {"input": "Fix it.", "tools": [PATCH_TOOL], "stream": True}
    answer = httpx.post(f"{server.url}/responses", json=body, timeout=60)
    kind = "response.custom_tool_call_input.delta"
    deltas = [event["delta"] for event in events_in(answer.content) if event["type"] == kind]
    assert "".join(deltas) == PATCH
    assert len(deltas) > 20, "about one for each token"


def test_the_server_says_which_definition_is_wrong(server: ScriptedServer) -> None:
    def param(definition: str, syntax: str = "lark") -> str:
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        answer = httpx.post(
            f"{server.url}/responses",
            json={"input": "hi", "tools": [ADD, PATCH_TOOL | {"format": form}]},
            timeout=60,
        )
        assert answer.status_code == 400, answer.text
        found: str = answer.json()["error"]["param"]
        return found

    assert param("start: (") == "tools[1].format.definition"
    assert param('start: "a"\n}\nother: %lark {\nstart: "b"') == "tools[1].format.definition"
    assert param("[a", "regex") == "tools[1].format.definition"
    assert param("start: /a/", "ebnf") == "tools[1].format.syntax"


def test_a_custom_tool_without_a_grammar_has_json(server: ScriptedServer) -> None:
    plain = {key: value for key, value in PATCH_TOOL.items() if key != "format"}
    server.says(call_text("apply_patch", {"input": "a\nb"}))
    answer = httpx.post(
        f"{server.url}/responses",
        json={"input": "hi", "tools": [plain, PATCH_TOOL | {"name": "p"}]},
        timeout=60,
    )
    (call,) = answer.json()["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", "a\nb")
