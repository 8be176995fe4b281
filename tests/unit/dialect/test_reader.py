"""Answers in the formats of models are parsed the same wherever the stream is split."""

import itertools
import json
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.dialect.pieces import CallArguments, CallStart, Content, ParsedCall, ParsedMessage, Piece, joined
from octavo.dialect.reader import FAMILIES, AnswerFormat, AnswerReader
from octavo.dialect.reasoning import Reasons
from octavo.dialect.tools import Tools, parse_tools

TOOLS = Tools({"add": ("a", "b"), "weather.today": ("city",)})
PARIS = ParsedCall("weather.today", '{"city": "Paris"}')


def read(format: AnswerFormat, *texts: str) -> ParsedMessage:
    reader = AnswerReader(format)
    pieces: list[Piece] = []
    for text in texts:
        pieces += reader.push(text)
    return joined(pieces + reader.finish())


def calls(*called: tuple[str, str], content: str = "") -> ParsedMessage:
    return ParsedMessage(content, None, tuple(ParsedCall(name, arguments) for name, arguments in called))


HERMES = [
    ("The sum is 3.", ParsedMessage("The sum is 3.")),
    (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        calls(("add", '{"a": 1, "b": 2}')),
    ),
    (
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "none", "arguments": {}}\n</tool_call>\n',
        calls(("add", '{"a": 1}'), ("none", "{}"), content="Let me see."),
    ),
    # Arguments before the name, as text, or missing; several objects in one tag; no closing tag.
    (
        '<tool_call>{"arguments": {"a": [1, "}"]}, "name": "add"}</tool_call>',
        calls(("add", '{"a": [1, "}"]}')),
    ),
    ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', calls(("add", '{"a": 1}'))),
    ('<tool_call>{"id": 7, "name": "add"}</tool_call>', calls(("add", "{}"))),
    (
        '<tool_call>{"name": "add"}\n{"name": "sub"}</tool_call>ok',
        calls(("add", "{}"), ("sub", "{}"), content="ok"),
    ),
    ('<tool_call>{"name": "add", "arguments": {"a": 1}}', calls(("add", '{"a": 1}'))),
    (
        '<tool_call>{"name": "\\u0061dd", "arguments": {"s": "\\"}{"}}</tool_call>',
        calls(("add", '{"s": "\\"}{"}')),
    ),
    # Formats of models that write code rather than calls.
    ('```json\n{"name": "add", "arguments": {"a": 1}}\n```', calls(("add", '{"a": 1}'))),
    ('So:\n```json\n{"name": "add", "arguments": {}}\n```\n', calls(("add", "{}"), content="So:")),
    ('```json\n{"name": "Ada"}\n```', ParsedMessage('```json\n{"name": "Ada"}\n```')),
    ('{"name": "add", "arguments": {"a": 1}}', calls(("add", '{"a": 1}'))),
    ('{"name": "Ada", "age": 36}', ParsedMessage('{"name": "Ada", "age": 36}')),
    (
        '{"name": "add", "price": 3}',
        ParsedMessage('{"name": "add", "price": 3}'),
    ),  # only the name is that of a tool
    ('{"arguments": {"a": 1}, "name": "add"}', calls(("add", '{"a": 1}'))),
    # Truncated at the token limit, before and after the name is complete.
    ('<tool_call>\n{"name": "ad', ParsedMessage('<tool_call>\n{"name": "ad')),
    ('<tool_call>\n{"name": "add", "arguments": {"a": "x', calls(("add", '{"a": "x'))),
    # Not calls: no text is lost.
    ("Write <tool_call> and </tool_call>.", ParsedMessage("Write <tool_call> and </tool_call>.")),
    ("a <tool_cal and < b\n", ParsedMessage("a <tool_cal and < b\n")),
    ('<tool_call>{"name": 7}</tool_call>', ParsedMessage('<tool_call>{"name": 7}</tool_call>')),
    ("<tool_call>{}</tool_call>", ParsedMessage("<tool_call>{}</tool_call>")),
    ("<tool_call>[]</tool_call> ", ParsedMessage("<tool_call>[]</tool_call> ")),
    ("<<tool_call><tool_call>", ParsedMessage("<<tool_call><tool_call>")),
]
LLAMA = [
    ("Hello {name}", ParsedMessage("Hello {name}")),
    ('{"name": "add", "parameters": {"a": 1}}', calls(("add", '{"a": 1}'))),
    ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', calls(("add", '{"a": 1}'))),
    ('{"type": "function", "name": "add", "parameters": {"a": 1}}', calls(("add", '{"a": 1}'))),
    (
        '{"name": "add", "parameters": {"a": 1}}; {"name": "weather.today", "parameters": {"city": "Paris"}}',
        ParsedMessage("", None, (ParsedCall("add", '{"a": 1}'), PARIS)),
    ),
    ('{"name": "Ada", "age": 36}', ParsedMessage('{"name": "Ada", "age": 36}')),
    ("[1, 2]", ParsedMessage("[1, 2]")),
    ('[weather.today(city="Paris")]', ParsedMessage("", None, (PARIS,))),
    (
        '[add(1, b=[2, "]"]), weather.today("Paris")]',
        ParsedMessage("", None, (ParsedCall("add", '{"a": 1, "b": [2, "]"]}'), PARIS)),
    ),
    ("[add(a=open('x'))]", ParsedMessage("[add(a=open('x'))]")),
    (r"[add(a='\ud800')]", ParsedMessage(r"[add(a='\ud800')]")),  # half a character
    ("[add(a=1), add(a=", calls(("add", '{"a": 1}'))),
    ("[sub(a=1)]", ParsedMessage("[sub(a=1)]")),
    (
        '{"name": "add", "parameters": {"a": 1}}\nThat was it.',
        calls(("add", '{"a": 1}'), content="\nThat was it."),
    ),
]
MISTRAL = [
    ("Bonjour [TOOL]", ParsedMessage("Bonjour [TOOL]")),
    ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', calls(("add", '{"a": 1}'))),
    (
        'Bon. [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "123456789"},'
        ' {"name": "sub", "arguments": {}}]',
        calls(("add", '{"a": 1}'), ("sub", "{}"), content="Bon."),
    ),
    (
        '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]sub[CALL_ID]12[ARGS]{"b": {}}',
        calls(("add", '{"a": 1}'), ("sub", '{"b": {}}')),
    ),
    ('[TOOL_CALLS]add{"a": 1', calls(("add", '{"a": 1'))),
    ("[TOOL_CALLS]?", ParsedMessage("[TOOL_CALLS]?")),
]
GEMMA = [
    ("```python\nadd(1)\n```", ParsedMessage("```python\nadd(1)\n```")),
    ("```tool_code\nadd(a=1, b=2)\n```", calls(("add", '{"a": 1, "b": 2}'))),
    (
        "Let me see.\n```tool_code\nprint(weather.today(city='Paris'))\nadd(1, 2)\n```\n",
        ParsedMessage("Let me see.", None, (PARIS, ParsedCall("add", '{"a": 1, "b": 2}'))),
    ),
    ("```tool_code\nimport os\n```", ParsedMessage("```tool_code\nimport os\n```")),
    ("```tool_code\nadd(a=1)", calls(("add", '{"a": 1}'))),
]
CASES = [
    *[("hermes", *case) for case in HERMES],
    *[("llama", *case) for case in LLAMA],
    *[("mistral", *case) for case in MISTRAL],
    *[("gemma", *case) for case in GEMMA],
]


@pytest.mark.parametrize(("family", "text", "expected"), CASES)
def test_answers_can_be_split_anywhere(family: str, text: str, expected: ParsedMessage) -> None:
    format = AnswerFormat(family=family, tools=TOOLS)
    assert read(format, text) == expected
    assert read(format, *text) == expected
    for cut in range(1, len(text)):
        assert read(format, text[:cut], text[cut:]) == expected


THOUGHTS = [
    (Reasons.MAYBE, "<think>\nHm.\n\nSo.\n</think>\n\nYes.", ParsedMessage("Yes.", "Hm.\n\nSo.")),
    (Reasons.MAYBE, "\n<think>Hm.</think>Yes.", ParsedMessage("Yes.", "Hm.")),
    (Reasons.MAYBE, "Yes. <think>no</think>", ParsedMessage("Yes. <think>no</think>")),
    (Reasons.MAYBE, "<thin", ParsedMessage("<thin")),
    (Reasons.MAYBE, "<think>\n\n</think>\n\nYes.", ParsedMessage("Yes.", None)),
    (Reasons.BEGUN, "\nHm. </thin</think>\nYes.", ParsedMessage("Yes.", "Hm. </thin")),
    (Reasons.BEGUN, "Hm. Never an end </thi", ParsedMessage("", "Hm. Never an end </thi")),
    (Reasons.NEVER, "<think>Hm.</think>Yes.", ParsedMessage("<think>Hm.</think>Yes.")),
]


@pytest.mark.parametrize(("reasons", "text", "expected"), THOUGHTS)
@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_reasoning_can_be_split_anywhere(
    family: str | None, reasons: Reasons, text: str, expected: ParsedMessage
) -> None:
    format = AnswerFormat(reasons, family, TOOLS)
    assert read(format, text) == expected
    for cut in range(1, len(text)):
        assert read(format, text[:cut], text[cut:]) == expected


def test_a_call_inside_reasoning_is_reasoning() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    message = read(AnswerFormat(Reasons.MAYBE, "hermes", TOOLS), f"<think>{call}</think>{call}")
    assert message == ParsedMessage("", call, (ParsedCall("add", "{}"),))


def test_arguments_are_streamed() -> None:
    reader = AnswerReader(AnswerFormat(family="hermes"))
    assert reader.push('Well.\n<tool_call>\n{"name": "add"') == [Content("Well."), CallStart(0, "add")]
    assert reader.push(', "arguments": {"te') == [CallArguments(0, '{"te')]
    assert reader.push('xt": "a') == [CallArguments(0, 'xt": "a')]
    assert reader.push('"}}\n</tool_call>') == [CallArguments(0, '"}')]
    assert reader.finish() == []


def test_only_possible_tags_are_held_back() -> None:
    reader = AnswerReader(AnswerFormat(family="hermes"))
    assert reader.push("a < b <tool") == [Content("a < b")]
    assert reader.push("s and") == [Content(" <tools and")]


# Fragments with a meaning in some family, and fragments that break them.
FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "```json", "</tool_call>", "[TOOL_CALLS]", "[ARGS]",
    "[CALL_ID]", "<|python_tag|>", "```tool_code\n", "```", "{", "}", "[", "]", "(", ")", '"', "'",
    "\\", ":", ",", ";",
    "\n", " ", "<", "add", "a=1", '"name"', '"arguments"', '"parameters"', '"add"', "add(a=1)", "print(",
    '{"name": "add", "arguments": {"a": 1}}', "1", "null", "é", "\0",
]  # fmt: skip


@pytest.mark.usefixtures("untraced")
@settings(max_examples=1500, deadline=None)
@given(
    st.sampled_from([None, *FAMILIES]),
    st.sampled_from(list(Reasons)),
    st.lists(st.sampled_from(FRAGMENTS), max_size=14),
    st.randoms(use_true_random=False),
)
def test_arbitrary_text_can_be_split_anywhere(
    family: str | None, reasons: Reasons, fragments: list[str], source: random.Random
) -> None:
    text = "".join(fragments)
    format = AnswerFormat(reasons, family, TOOLS)
    cuts = sorted(source.randrange(len(text) + 1) for _ in range(4))
    borders = [0, *cuts, len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(borders)]
    message = read(format, text)
    assert read(format, *parts) == message
    assert read(format, *text) == message
    if not message.calls and reasons is not Reasons.BEGUN and "<think>" not in text:
        assert message.content == text  # without a call, every character is text


@pytest.mark.usefixtures("untraced")
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["hermes", "llama", "mistral"]),
    st.dictionaries(st.text(max_size=5), st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ), max_size=4),
    st.booleans(),
)  # fmt: skip
def test_arbitrary_arguments_round_trip(family: str, arguments: dict[str, object], is_ascii: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=is_ascii)
    written = {
        "hermes": f'<tool_call>\n{{"name": "add", "arguments": {text}}}\n</tool_call>',
        "llama": f'{{"name": "add", "parameters": {text}}}',
        "mistral": f'[TOOL_CALLS][{{"name": "add", "arguments": {text}}}]',
    }[family]
    assert read(AnswerFormat(family=family, tools=TOOLS), *written) == calls(("add", text))


def test_tools_are_parsed_from_the_request_format() -> None:
    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}
    tools = parse_tools([{"type": "function", "function": function}, {"function": {"name": "now"}}])
    assert tools == Tools({"add": ("a", "b"), "now": ()})


@pytest.mark.parametrize(
    ("reasons", "before"), [(Reasons.MAYBE, ""), (Reasons.BEGUN, "x"), (Reasons.NEVER, "x")]
)
def test_long_runs_of_newlines_take_linear_time(
    reasons: Reasons, before: str, figure: Callable[[str], None]
) -> None:
    def seconds(count: int) -> float:
        reader = AnswerReader(AnswerFormat(reasons, "hermes", TOOLS))
        reader.push(before)
        started = time.process_time()
        for _ in range(count):
            reader.push("\n")
        return time.process_time() - started

    seconds(2000)
    few, many = (min(seconds(count) for _ in range(3)) for count in (2000, 32000))
    figure(f"16 times as many newlines take {many / few:.0f} times as long")
    assert many < 4 * 16 * few  # quadratic time would be 256 times as long


def test_invalid_tool_parameters_are_ignored() -> None:
    function: dict[str, object] = {"name": "f", "parameters": {"properties": 5}}
    assert parse_tools([{"function": function}]) == Tools({"f": ()})
