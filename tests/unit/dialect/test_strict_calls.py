"""Calls in answers that a grammar constrains conform to it, whatever else the answer contains."""

import json
import random
from collections import Counter

import jsonschema
import pytest

from data.json_types import JsonObject
from octavo.dialect.call_grammar import TextInput, full_grammar, text_with_calls
from octavo.dialect.pieces import ParsedCall, ParsedMessage, joined
from octavo.dialect.reader import AnswerFormat, AnswerReader
from octavo.dialect.reasoning import Reasons
from octavo.dialect.tools import Tools
from octavo.grammar.compiler import CompiledGrammar, compile_grammar
from octavo.grammar.limits import with_lark
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.protocol import GrammarKind, GrammarSpec

NUMBER: JsonObject = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD, PLAIN = {"name": "add", "parameters": NUMBER}, {"name": "plain"}
PAIRS, ANY = 'start: "a" start "b" | "c"', "start: /(.|\\n)*/"
NAMES = ("add", "plain", "pairs", "any")
TOOLS = Tools(dict.fromkeys(NAMES, ()), text_tools=("pairs", "any"), may_be_bare=True)
# What calls consist of, in the forms of the grammar and in others.
MARKS = (
    "<tool_call>",
    "</tool_call>",
    "```json",
    "```",
    "`",
    "<",
    "{",
    "}",
    '"',
    ":",
    ",",
    "\n",
    " ",
    "x",
    "[",
    "\\",
)
STRINGS = ('"name"', '"arguments"', '"add"', '"plain"', '"pairs"', '"any"', '"other"', '"a"')
PARTS = (
    '{"name": ',
    '{"name"',
    ', "arguments": ',
    "}\n",
    '{"a": 1}',
    '{"a": "x"}',
    '{"id": 7, ',
    "c",
    "aacbb",
    "1",
)
BEGUN = tuple(f'{opening}\n{{"name": "{name}"' for opening in ("<tool_call>", "```json") for name in NAMES)
WHOLE = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    '{"arguments": {"a": "x"}, "name": "add"}',
    '{"name": "add", "arguments": "x"}',
    '{"name": "pairs"}\nb',
    '```json\n{"name": "plain", "arguments": {}}\n```',
)
FRAGMENTS = (*MARKS, *STRINGS, *PARTS, *BEGUN, *WHOLE, "<think>", "</think>")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


def grammar_of(vocabulary: Vocabulary, reasons: Reasons = Reasons.NEVER) -> CompiledGrammar:
    rules = text_with_calls([ADD, PLAIN], [TextInput("pairs", PAIRS), TextInput("any", ANY)])
    text = with_lark(full_grammar("text", rules, reasons), 12)
    return compile_grammar(GrammarSpec(GrammarKind.CALLS, text), vocabulary)


@pytest.fixture(scope="module", params=Reasons)
def answers(vocabulary: Vocabulary, request: pytest.FixtureRequest) -> tuple[Reasons, list[str]]:
    """Random answers that the grammar accepts."""
    grammar = grammar_of(vocabulary, request.param)
    found = [answer for seed in range(300) for answer in walk(grammar, random.Random(seed))]
    return request.param, found


def walk(grammar: CompiledGrammar, dice: random.Random) -> list[str]:
    """Append random fragments that the grammar allows. Return the complete answers on the way."""
    matcher = grammar.new_matcher()
    text, found = "", []
    first = dice.choice([[], [], ["<think>"], ["\n <think>", "\n"], ["x</think>"], ["</think>", "\n\n"]])
    for fragment in (*first, *(dice.choice(FRAGMENTS) for _ in range(40))):
        if matcher.validate_tokens(list(fragment.encode())) == len(fragment.encode()):
            assert matcher.consume_tokens(list(fragment.encode()))
            text += fragment
            if matcher.is_accepting():
                found.append(text)
    return found


def read(
    text: str, family: str = "strict", tools: Tools = TOOLS, reasons: Reasons = Reasons.NEVER
) -> ParsedMessage:
    reader = AnswerReader(AnswerFormat(reasons, family, tools))
    return joined(reader.push(text) + reader.finish())


def conforms(call: ParsedCall, pairs: CompiledGrammar) -> bool:
    if call.name == "any":
        return True
    if call.name == "pairs":
        matcher = pairs.new_matcher()
        return all(map(matcher.consume_token, call.arguments.encode())) and matcher.is_accepting()
    try:
        decoded = json.loads(call.arguments)
    except ValueError:
        return False
    if call.name == "add":
        return bool(jsonschema.Draft202012Validator(NUMBER).is_valid(decoded))
    return call.name == "plain" and isinstance(decoded, dict)


@pytest.fixture(scope="module")
def pairs(vocabulary: Vocabulary) -> CompiledGrammar:
    return compile_grammar(GrammarSpec(GrammarKind.LARK, PAIRS), vocabulary)


Answers = tuple[Reasons, list[str]]


def test_every_call_conforms(answers: Answers, pairs: CompiledGrammar) -> None:
    reasons, texts = answers
    calls: Counter[str] = Counter()
    for text in texts:
        for call in read(text, reasons=reasons).calls:
            calls[call.name] += 1
            assert conforms(call, pairs), text
    assert set(calls) == set(NAMES), calls


def test_a_lenient_reader_takes_other_text_for_calls(answers: Answers, pairs: CompiledGrammar) -> None:
    """So the test above can fail."""
    reasons, texts = answers
    found = [call for text in texts for call in read(text, "hermes", reasons=reasons).calls]
    assert not all(conforms(call, pairs) for call in found)


def test_no_text_is_lost_or_repeated(answers: Answers) -> None:
    """Content, reasoning, names and arguments are parts of the answer, in this order within their kinds."""
    reasons, texts = answers
    form = set("<tool_call></tool_call><think></think>```json") | set('{"name": "arguments": ,} \n')
    for text in texts:
        message = read(text, reasons=reasons)
        called = "".join(call.name + call.arguments for call in message.calls)
        shown = Counter(message.content + (message.reasoning or "") + called)
        assert not shown - Counter(text), f"repeated: {text!r}"
        assert not (Counter(text) - shown).keys() - form, f"lost: {text!r}"
        if reasons is Reasons.NEVER and not message.calls:
            assert message.content == text


def test_any_division_gives_the_same_message(answers: Answers) -> None:
    reasons, texts = answers
    for text in texts[::20]:
        reader = AnswerReader(AnswerFormat(reasons, "strict", TOOLS))
        pieces = [piece for char in text for piece in reader.push(char)]
        assert joined(pieces + reader.finish()) == read(text, reasons=reasons)


@pytest.mark.parametrize(
    "repeated",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n',
        '```json\n{"name": "add", "arguments": {"a": 1}}\n```\n',
        '```json\n{"name": "other", "b": 1}\n```\n',
        '```json\n{"name": 7}\n```\n',
    ],
    ids=["tags", "fences", "other names", "no names"],
)
def test_long_answers_need_no_more_of_the_parser(vocabulary: Vocabulary, repeated: str) -> None:
    """Its limits are those of one position. A call must leave nothing behind that counts at later ones."""
    matcher = grammar_of(vocabulary).new_matcher()
    for _ in range(600):
        assert matcher.consume_tokens(list(repeated.encode())), matcher.get_error()
        matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
    assert matcher.is_accepting()


@pytest.mark.parametrize("opening", ["", "```json\n", "<tool_call>\n"], ids=["beginning", "fence", "tag"])
def test_calls_that_are_cut_off(opening: str) -> None:
    """A call exists once something of its arguments is there. Before, its text is content."""
    function = f'{opening}{{"name": "add", "arguments": {{"a": 1'
    text = f'{opening}{{"name": "any"}}\nab'
    for complete, name, arguments in ((function, "add", '{"a": 1'), (text, "any", "ab")):
        for end in range(len(complete) + 1):
            message = read(complete[:end])
            if message.calls:
                (call,) = message.calls
                assert (call.name, arguments.startswith(call.arguments)) == (name, True)
                assert not message.content
            else:
                assert message.content == complete[:end]
        assert read(complete).calls[0].arguments == arguments


def test_without_bare_names_only_a_tag_makes_a_call() -> None:
    """As where the answer may have a requested format instead."""
    tagged_only = Tools({"add": ("a",), "any": ()}, text_tools=("any",))
    for text in ('{"name": "add", "arguments": {"a": 1}}', '```json\n{"name": "any"}\nab'):
        assert read(text, tools=tagged_only) == ParsedMessage(text)
    assert read('<tool_call>\n{"name": "any"}\nab', tools=tagged_only).calls[0].arguments == "ab"


def test_the_fence_around_a_call_is_left_out() -> None:
    call = '{"name": "plain", "arguments": {}}'
    for text, content in (
        (f"So:\n```json\n{call}\n```\nok", "So:\nok"),
        (f"```json\n{call}", ""),
        (f"```json\n{call} ok", "ok"),
        (f"```json\n{call}``", "``"),
    ):
        message = read(text)
        assert (len(message.calls), message.content.strip()) == (1, content), text
    for between in ("\n```\n", "\n", "", "\n`"):
        assert len(read(f"```json\n{call}{between}```json\n{call}\n```").calls) == 2, between
