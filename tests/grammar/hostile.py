"""Grammars designed to take very long, to exhaust memory, or to crash the process."""

import json

from data.json_types import Json, JsonObject
from octavo.dialect.call_grammar import TextInput, calls_only, full_grammar
from octavo.dialect.reasoning import Reasons
from octavo.grammar.limits import with_lark
from octavo.protocol import GrammarKind, GrammarSpec


def _schema(value: Json) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(value))


def _regex(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, text)


def _lark(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.LARK, text)


def _nested(depth: int, around: str) -> GrammarSpec:
    schema: JsonObject = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema} if around == "array" else {"properties": {"a": schema}}
    return _schema(schema)


def _doubling(keyword: str, levels: int) -> GrammarSpec:
    """Return a schema in which each definition refers to the next one twice."""
    names = [f"#/$defs/d{level}" for level in range(levels + 1)]
    definitions = {f"d{level}": {keyword: [{"$ref": names[level + 1]}] * 2} for level in range(levels)}
    return _schema({"$ref": names[0], "$defs": {**definitions, f"d{levels}": {"type": "integer"}}})


REGEXES = {
    "a count": _regex("(a|b){1,100000}"),
    "a count of a thousand digits": _regex("a{" + "9" * 1000 + "}"),
    "counts in counts": _regex("((a{1,100}){1,100}){1,100}"),
    "counts in counts, five deep": _regex("(((((a?){0,50}){0,50}){0,50}){0,50}){0,50}"),
    "stars in stars": _regex("(?:(?:(?:(?:a*)*)*)*)*b"),
    "two ways at every step": _regex("(a|a)*(a|aa)*(a+)+b"),
    "many states": _regex("(a|b)*a(a|b){30}"),
    "very many states": _regex("(a|b)*a(a|b){3000}"),
    "states of states": _regex(".*a.{40}b.{40}c"),
    "letters of all scripts": _regex(r"[\p{L}]{1,5000}"),
    "words of all scripts": _regex(r"(\w+\s\w+){200}"),
    "alternatives": _regex("|".join(f"{n * 2654435761 % 2**32:x}" for n in range(10_000))),
    "parentheses": _regex("(" * 5000 + "a" + ")" * 5000),
    "brackets": _regex("[" * 5000),
    "a class in a class": _regex("[a-z&&[^aeiou" * 200 + "]" * 200),
    "look-around": _regex("(?=a*)b"),
    "a reference back": _regex(r"(a*)\1"),
    "a long word": _regex("a" * 100_000),
    "too long": _regex("a" * 10_000_000),
    "half a character": _regex("\ud83d"),
    "zeros": _regex("\0" * 1000),
}
SCHEMAS = {
    "deep lists": _nested(300, "array"),
    "deep records": _nested(300, "record"),
    "as deep as allowed": _nested(30, "record"),
    "brackets": GrammarSpec(GrammarKind.JSON_SCHEMA, "[" * 100_000),
    "maxItems": _schema({"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}),
    "minItems": _schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**6}),
    "maxItems in maxItems": _schema(
        {
            "type": "array",
            "maxItems": 9999,
            "items": {"type": "array", "maxItems": 9999, "items": {"maxItems": 9999}},
        }
    ),
    "maxLength": _schema({"type": "string", "minLength": 10**5, "maxLength": 10**7}),
    "maxLength 1e308": GrammarSpec(GrammarKind.JSON_SCHEMA, '{"type": "string", "maxLength": 1e308}'),
    "optional properties": _schema(
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}}
    ),
    "an enum": _schema({"enum": [f"v{n * 7919}" for n in range(9000)]}),
    "patterns that must all hold": _schema(
        {"allOf": [{"type": "string", "pattern": f".*{c}.*{c}.*"} for c in "abcdefghijklmnop"]}
    ),
    "patterns of names": _schema(
        {"type": "object", "patternProperties": {f"^.*{c}.{{10}}$": {} for c in "abcdefghij"}}
    ),
    "allOf of allOf": _doubling("allOf", 25),
    "anyOf of anyOf": _doubling("anyOf", 25),
    "oneOf of oneOf": _doubling("oneOf", 25),
    "allOf of anyOf": _schema(
        {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(4)]} for i in range(12)]}
    ),
    "itself": _schema({"$ref": "#"}),
    "itself and itself": _schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    "multipleOf": _schema({"type": "integer", "multipleOf": 1_000_003}),
    "multipleOf, tiny": _schema({"type": "number", "multipleOf": 1e-300}),
    "a wide range": _schema({"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
    "another machine": _schema({"$ref": "http://127.0.0.1:9/schema.json"}),
    "a file": _schema({"$ref": "file:///etc/passwd"}),
    "options of the library": _schema({"uniqueItems": True, "x-guidance": {"lenient": True}}),
    "no JSON": GrammarSpec(GrammarKind.JSON_SCHEMA, "{" * 10),
}
LARK = {
    "itself": _lark("start: start"),
    "itself twice": _lark("start: start start"),
    "ambiguous": _lark('start: a\na: a a a | b\nb: b b | "x" | "y" | '),
    "counts in counts": _lark('start: b{1,1000}\nb: c{1,1000}\nc: d{1,1000}\nd: "a"{1,1000}'),
    "terminals of terminals": _lark("start: T\nT: U{1,100}\nU: V{1,100}\nV: /a{1,100}b/"),
    "rules": _lark(
        "start: " + " | ".join(f"r{n}" for n in range(4000)) + "".join(f'\nr{n}: "{n}"' for n in range(4000))
    ),
    # Compiles in a few milliseconds, and becomes too complex only while an answer is generated.
    "rules after a beginning": _lark(
        'start: ("x" | "y") ("x" | "y") any\nany: '
        + " | ".join(f"r{n}" for n in range(400))
        + "".join(f'\nr{n}: "r{n}"' for n in range(400))
    ),
    "terminals that must both hold": _lark("start: T\nT: /.*x.{20}/ & ~/.*y.{20}z/"),
    "no grammar": _lark("{{{{"),
}


def _call(lark: str) -> GrammarSpec:
    """Return the grammar of a call whose input conforms to another one."""
    rules = calls_only([], [TextInput("write", lark)], "hermes", at_most_one=True)
    return GrammarSpec(GrammarKind.CALLS, with_lark(full_grammar("calls", rules, Reasons.NEVER), 0))


CALLS = {name: _call(spec.text) for name, spec in LARK.items()}
HOSTILE: dict[str, GrammarSpec] = {
    f"{kind}: {name}": spec
    for kind, specs in (("regex", REGEXES), ("schema", SCHEMAS), ("lark", LARK), ("call", CALLS))
    for name, spec in specs.items()
}
