"""What a grammar may be, as far as that can be told without compiling it."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import GrammarError
from octavo.protocol import GrammarKind, GrammarSpec

# In regexes and in Lark: {3}, {3,} or {3,5}.
REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")

# Keywords of a schema whose value is a number of repetitions.
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

# Of grammars that are known: compiled in a worker, or with a verdict in the front end. Both count alike, so
# that what one of them knows the other mostly does too.
KNOWN_BYTES = 64 << 20


def estimated_bytes(spec: GrammarSpec) -> int:
    """About what a compiled grammar takes in memory."""
    return 64 * 1024 + 64 * len(spec.text)


@dataclass(frozen=True)
class GrammarLimits:
    max_bytes: int = 128 * 1024
    max_depth: int = 64  # levels of JSON, or parentheses in parentheses
    max_choices: int = 1024
    max_values: int = 20_000  # in a schema: each is looked at by whoever takes the request
    max_repeat: int = 10_000


def check_spec(spec: GrammarSpec, limits: GrammarLimits | None = None) -> None:
    """Raises GrammarError. Costs time in proportion to the text at most."""
    limits = limits or GrammarLimits()
    if not isinstance(spec, GrammarSpec) or not isinstance(spec.text, str):
        raise GrammarError("grammar must be a GrammarSpec: a kind and a text")
    num_bytes = len(spec.text.encode("utf-8", "replace"))
    if num_bytes > limits.max_bytes:
        raise GrammarError(f"the grammar has {num_bytes} bytes; at most {limits.max_bytes} are allowed")
    if any("\ud800" <= char <= "\udfff" for char in spec.text):
        raise GrammarError("the grammar is not valid Unicode: it has lone surrogates")
    if spec.kind is GrammarKind.JSON_SCHEMA:
        _check_schema(schema_of(spec), limits)
    elif spec.kind is GrammarKind.JSON_OBJECT:
        if spec.text:
            raise GrammarError("a grammar of the kind json_object has no text")
    elif spec.kind is GrammarKind.CHOICE:
        choices_of(spec, limits)
    elif spec.kind is not GrammarKind.CALLS:  # whose parts were checked, and whose rules are ours
        _check_source(spec.text, limits)


def schema_of(spec: GrammarSpec) -> dict[str, Any]:
    """`true` is the schema of everything. (`false`, that of nothing, is refused.)"""
    try:
        schema = msgspec.json.decode(spec.text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError("a schema is a JSON object")
    return schema


def choices_of(spec: GrammarSpec, limits: GrammarLimits | None = None) -> list[str]:
    most = (limits or GrammarLimits()).max_choices
    try:
        choices = msgspec.json.decode(spec.text, type=list[str])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GrammarError("choices are a JSON list of strings") from error
    if not 0 < len(choices) <= most or not all(choices):
        raise GrammarError(f"choices are 1 to {most} strings, none of them empty")
    return choices


def _check_schema(schema: dict[str, Any], limits: GrammarLimits) -> None:
    """Every value in the schema is looked at, whether it is a subschema or not: that is on the safe side."""
    level: list[Any] = [schema]
    num_values = 0
    for _ in range(limits.max_depth):
        level = [inner for value in level for inner in _inside(value, limits)]
        num_values += len(level)
        if num_values > limits.max_values:
            raise GrammarError(f"the schema has more than {limits.max_values} values")
        if not level:
            return
    raise GrammarError(f"the schema is nested more than {limits.max_depth} levels deep")


def _inside(value: Any, limits: GrammarLimits) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    for name in COUNTS:
        count = value.get(name)
        if isinstance(count, int | float) and count > limits.max_repeat:
            raise GrammarError(f"{name} is more than {limits.max_repeat}, the most that is allowed")
    pattern = value.get("pattern")
    patterns = value.get("patternProperties")
    for source in (pattern, *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(source, str):
            _check_source(source, limits)
    return list(value.values())


def _check_source(text: str, limits: GrammarLimits) -> None:
    """Of a regex or a grammar in Lark."""
    if not text:
        raise GrammarError("the grammar is empty")
    for match in REPEAT.finditer(text):
        for count in match.groups():
            if count and (len(count) > 9 or int(count) > limits.max_repeat):
                raise GrammarError(f"a repeat count of {count[:12]}; at most {limits.max_repeat} is allowed")
    depth = deepest = 0
    for char in text:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth = max(0, depth - 1)
    if deepest > limits.max_depth:
        raise GrammarError(f"parentheses are nested {deepest} deep; at most {limits.max_depth} are allowed")
