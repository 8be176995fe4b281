"""Grammars that are rejected without compilation."""

import json

import pytest

from octavo.errors import GrammarError
from octavo.grammar.limits import GrammarLimits, check_spec
from octavo.protocol import GrammarKind, GrammarSpec

LIMITS = GrammarLimits(max_bytes=2000, max_depth=6, max_choices=3, max_repeat=100)


def nested(depth: int) -> str:
    return '{"not":' * depth + "{}" + "}" * depth


REFUSED = {
    "bytes": (GrammarKind.REGEX, "ä" * 1001, "2002 bytes"),
    "surrogates": (GrammarKind.REGEX, "\ud800", "Unicode"),
    "no JSON": (GrammarKind.JSON_SCHEMA, "{", "JSON"),
    "numbers that are none": (GrammarKind.JSON_SCHEMA, '{"minimum": NaN}', "JSON"),
    "a list": (GrammarKind.JSON_SCHEMA, "[]", "object"),
    "the schema of nothing": (GrammarKind.JSON_SCHEMA, "false", "object"),
    "deep": (GrammarKind.JSON_SCHEMA, nested(7), "6 levels"),
    "as deep as the interpreter can go": (GrammarKind.JSON_SCHEMA, "[" * 2000, "JSON"),
    "maxLength": (GrammarKind.JSON_SCHEMA, '{"items": [{"maxLength": 101}]}', "maxLength"),
    "minItems": (GrammarKind.JSON_SCHEMA, '{"minItems": 1e300}', "minItems"),
    "a repeat in a pattern": (GrammarKind.JSON_SCHEMA, json.dumps({"pattern": "a{1,101}"}), "101"),
    "a repeat in a name": (GrammarKind.JSON_SCHEMA, json.dumps({"patternProperties": {"a{101}": {}}}), "101"),
    "a repeat": (GrammarKind.REGEX, "a{101,}", "101"),
    "a long count": (GrammarKind.REGEX, "a{" + "9" * 500 + "}", "999"),
    "parentheses": (GrammarKind.LARK, "start: " + "(" * 7 + '"a"' + ")" * 7, "nested"),
    "an empty regex": (GrammarKind.REGEX, "", "empty"),
    "choices that are no strings": (GrammarKind.CHOICE, "[1]", "strings"),
    "no choice": (GrammarKind.CHOICE, "[]", "1 to 3"),
    "many choices": (GrammarKind.CHOICE, '["a","b","c","d"]', "1 to 3"),
    "an empty choice": (GrammarKind.CHOICE, '[""]', "empty"),
    "text where none belongs": (GrammarKind.JSON_OBJECT, "{}", "no text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_grammars_above_a_limit_are_rejected(name: str) -> None:
    kind, text, words = REFUSED[name]
    with pytest.raises(GrammarError, match=words) as caught:
        check_spec(GrammarSpec(kind, text), LIMITS)
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.REGEX, "a{100}"),
        (GrammarKind.JSON_SCHEMA, nested(5)),
        (GrammarKind.JSON_SCHEMA, "true"),
        (GrammarKind.JSON_SCHEMA, '{"properties": {"minLength": {"maxLength": 100}, "pattern": {}}}'),
        (GrammarKind.LARK, "start: ((((((x))))))"),
        (GrammarKind.CHOICE, '["a","b","c"]'),
        (GrammarKind.JSON_OBJECT, ""),
    ],
)
def test_grammars_at_the_limit_are_accepted(kind: GrammarKind, text: str) -> None:
    check_spec(GrammarSpec(kind, text), LIMITS)
