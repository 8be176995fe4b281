"""Supported schemas of the collection accept their examples; others are rejected by keyword."""

import json
import random

import jsonschema
import pytest

from data.json_types import JsonObject
from grammar.schemas import REFUSED, SCHEMAS, Case
from octavo.errors import GrammarError
from octavo.grammar.compiler import CompiledGrammar, compile_grammar
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary, byte_vocabulary
from octavo.protocol import GrammarKind, GrammarSpec


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


def schema(value: object) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(value))


def accepts(spec: GrammarSpec, vocabulary: Vocabulary, text: str) -> bool:
    matcher = GrammarMatcher(compile_grammar(spec, vocabulary))
    try:
        for byte in text.encode():
            matcher.append(byte)
    except GrammarError:
        return False
    return matcher.is_accepting


def test_the_examples_of_the_collection_conform() -> None:
    assert len({case.text for case in SCHEMAS}) >= 200
    for case in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(case.schema)
        jsonschema.Draft202012Validator(case.schema).validate(case.example)


def test_every_schema_accepts_its_example(vocabulary: Vocabulary) -> None:
    layouts: list[JsonObject] = [{}, {"indent": 2}, {"separators": (",", ":")}]
    refused = [
        case.name
        for case in SCHEMAS
        for layout in layouts
        if not accepts(
            schema(case.schema), vocabulary, json.dumps(case.example, ensure_ascii=False, **layout)
        )
    ]
    assert not refused


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_unsupported_schemas_are_rejected_by_keyword(vocabulary: Vocabulary, case: Case) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_grammar(schema(case.schema), vocabulary)
    assert case.refused_for in str(caught.value)


def test_a_schema_cannot_override_compiler_options(vocabulary: Vocabulary) -> None:
    """llguidance reads options from the schema; our own options take precedence."""
    lenient = {"x-guidance": {"lenient": True, "coerce_one_of": True}}
    for refused in ({"uniqueItems": True}, {"oneOf": [{"type": "integer"}, {"minimum": 2}]}):
        with pytest.raises(GrammarError):
            compile_grammar(schema({**refused, **lenient}), vocabulary)
    spaces = schema({"type": "array", "x-guidance": {"whitespace_pattern": "[ ]*"}})
    assert not accepts(spaces, vocabulary, "[   ]")


def test_whitespace_in_json_is_bounded(vocabulary: Vocabulary) -> None:
    spec = schema({"type": "array", "items": {"type": "integer"}})
    assert accepts(spec, vocabulary, "[\n\t1 ,\n    2\n]")
    assert not accepts(spec, vocabulary, "[  1]")
    assert not accepts(spec, vocabulary, "[\n\n1]")
    assert not accepts(spec, vocabulary, " [1]")
    assert not accepts(spec, vocabulary, "[1]\n")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (GrammarKind.REGEX, "(a", "unclosed group"),
        (GrammarKind.REGEX, "(?=a)b", "look-ahead"),
        (GrammarKind.LARK, "no grammar", "cannot be used"),
        (GrammarKind.JSON_SCHEMA, '{"type": "intger"}', "intger"),
        (GrammarKind.JSON_SCHEMA, '{"type": "integer", "minimum": 3, "maximum": 2}', "greater than maximum"),
    ],
)
def test_errors_name_the_problem(vocabulary: Vocabulary, kind: GrammarKind, text: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        compile_grammar(GrammarSpec(kind, text), vocabulary)


def test_answers_do_not_move_each_others_limits(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer needs lexer states of its own, and about half of them reach the limit."""
    monkeypatch.setattr("octavo.grammar.compiler.MAX_LEXER_STATES", 100)
    spec = GrammarSpec(GrammarKind.REGEX, "[ab]*a[ab]{8}")
    shared = compile_grammar(spec, vocabulary)
    answers = [random.Random(seed).choices(b"ab", k=45) for seed in range(20)]
    alone = [end_of(compile_grammar(spec, vocabulary), answer) for answer in answers]
    assert {45} < {*alone}
    assert [end_of(shared, answer) for answer in answers] == alone


def end_of(compiled: CompiledGrammar, answer: list[int]) -> int:
    """Return how many tokens of the answer can be followed."""
    matcher = GrammarMatcher(compiled)
    for number, token_id in enumerate(answer):
        try:
            matcher.follow(token_id)
        except GrammarError:
            return number
    return len(answer)
