"""Limits on grammars that can be checked without compiling them."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import GrammarError
from octavo.protocol import GrammarKind, GrammarSpec

# In regexes and in Lark: {3}, {3,} or {3,5}.
REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")

# Items of the parser at one position of the text. A schema has four for each property that may come next. In
# a client's Lark grammar, each may be a different parse of the text so far, and time grows with their square.
MAX_ITEMS_IN_ROW = 2_000
MAX_ITEMS_IN_ROW_OF_LARK = 300
MAX_ITEMS_IN_ROW_BESIDE_LARK = 850
WITH_LARK = re.compile(r"// with Lark of a client; items of the other rules: (\d+)\n")

# Schema keywords whose value is a number of repetitions.
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

# Size of the cache of compiled grammars in a worker, and of the cache of verdicts in the front end. Both use
# `estimated_bytes`, so that they mostly contain the same grammars.
KNOWN_BYTES = 64 << 20


def estimated_bytes(spec: GrammarSpec) -> int:
    """Return the approximate memory size of a compiled grammar."""
    return 64 * 1024 + 64 * len(spec.text)


@dataclass(frozen=True)
class GrammarLimits:
    max_bytes: int = 128 * 1024
    max_depth: int = 64  # levels of JSON, or of nested parentheses
    max_choices: int = 1024
    max_values: int = 20_000  # in a schema: the front end visits each one when it validates a request
    max_repeat: int = 10_000


def with_lark(grammar: str, num_items: int) -> str:
    """Return a grammar of calls that contains Lark of a client, with a first line that says so.

    Only its maker knows which rules are the client's, and how many items the others may need, before and
    after the text that conforms to the client's.
    """
    return f"// with Lark of a client; items of the other rules: {num_items}\n{grammar}"


def row_limit(spec: GrammarSpec) -> int:
    """Return the maximum number of items at one position.

    No position has items of a client's Lark and of other rules, so the limit is the larger one of both.
    """
    if spec.kind is GrammarKind.LARK:
        return MAX_ITEMS_IN_ROW_OF_LARK
    line = WITH_LARK.match(spec.text) if spec.kind is GrammarKind.CALLS else None
    if line is None:
        return MAX_ITEMS_IN_ROW
    return max(MAX_ITEMS_IN_ROW_OF_LARK, min(MAX_ITEMS_IN_ROW_BESIDE_LARK, int(line[1])))


def check_spec(spec: GrammarSpec, limits: GrammarLimits | None = None) -> None:
    """Raise GrammarError if the spec exceeds a limit. Takes at most linear time."""
    limits = limits or GrammarLimits()
    if not isinstance(spec, GrammarSpec) or not isinstance(spec.text, str):
        raise GrammarError("grammar must be a GrammarSpec: a kind and a text")
    num_bytes = len(spec.text.encode("utf-8", "replace"))
    if num_bytes > limits.max_bytes:
        raise GrammarError(f"the grammar has {num_bytes} bytes; the maximum is {limits.max_bytes}")
    if any("\ud800" <= char <= "\udfff" for char in spec.text):
        raise GrammarError("the grammar is not valid Unicode: it has lone surrogates")
    if spec.kind is GrammarKind.JSON_SCHEMA:
        _check_schema(schema_of(spec), limits)
    elif spec.kind is GrammarKind.JSON_OBJECT:
        if spec.text:
            raise GrammarError("a grammar of kind json_object must have no text")
    elif spec.kind is GrammarKind.CHOICE:
        choices_of(spec, limits)
    elif spec.kind is not GrammarKind.CALLS:  # built by the server from checked parts
        _check_source(spec.text, limits)


def schema_of(spec: GrammarSpec) -> dict[str, Any]:
    """Return the decoded schema. `true`, which allows everything, becomes {}; `false` is rejected."""
    try:
        schema = msgspec.json.decode(spec.text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError("the schema must be a JSON object")
    return schema


def choices_of(spec: GrammarSpec, limits: GrammarLimits | None = None) -> list[str]:
    limit = (limits or GrammarLimits()).max_choices
    try:
        choices = msgspec.json.decode(spec.text, type=list[str])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GrammarError("choices must be a JSON list of strings") from error
    if not 0 < len(choices) <= limit or not all(choices):
        raise GrammarError(f"choices must be 1 to {limit} strings, none of them empty")
    return choices


def _check_schema(schema: dict[str, Any], limits: GrammarLimits) -> None:
    """Check every value in the schema, including those that are not subschemas: this is conservative."""
    level: list[Any] = [schema]
    num_values = 0
    for _ in range(limits.max_depth):
        level = [child for value in level for child in _checked_children(value, limits)]
        num_values += len(level)
        if num_values > limits.max_values:
            raise GrammarError(f"the schema has more than {limits.max_values} values")
        if not level:
            return
    raise GrammarError(f"the schema is nested more than {limits.max_depth} levels deep")


def _checked_children(value: Any, limits: GrammarLimits) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    for name in COUNTS:
        count = value.get(name)
        if isinstance(count, int | float) and count > limits.max_repeat:
            raise GrammarError(f"{name} is more than the maximum of {limits.max_repeat}")
    pattern = value.get("pattern")
    patterns = value.get("patternProperties")
    for source in (pattern, *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(source, str):
            _check_source(source, limits)
    return list(value.values())


def _check_source(text: str, limits: GrammarLimits) -> None:
    """Check a regex or a Lark grammar."""
    if not text:
        raise GrammarError("the grammar is empty")
    for match in REPEAT.finditer(text):
        for count in match.groups():
            if count and (len(count) > 9 or int(count) > limits.max_repeat):
                raise GrammarError(f"repeat count {count[:12]} exceeds the maximum of {limits.max_repeat}")
    depth = deepest = 0
    for char in text:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth = max(0, depth - 1)
    if deepest > limits.max_depth:
        raise GrammarError(f"parentheses are nested {deepest} levels deep; the maximum is {limits.max_depth}")
