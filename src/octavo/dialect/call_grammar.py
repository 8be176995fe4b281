"""Grammars of answers with tool calls, which force a model to write valid calls.

A grammar is a list of rules in llguidance's dialect of Lark; `%json` is a rule given as a JSON schema.
Reasoning before the answer is not constrained: the grammar only detects its end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.dialect.families import HERMES_CLOSE, HERMES_OPEN
from octavo.dialect.reasoning import CLOSE, OPEN, Reasons
from octavo.grammar.compiler import JSON_OPTIONS

Function = Mapping[str, Any]  # its name and the schema of its parameters

ANYTHING = "/(.|\\n)*/"
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class CallShape:
    """How a family writes one call, as {"name": ..., "arguments": ...} in delimiters, and several calls."""

    before: str
    after: str
    arguments: str = "arguments"
    between: str | None = None  # None: at most one call
    opening: str = ""  # around all calls
    closing: str = ""


SHAPES = {
    "hermes": CallShape(f"{HERMES_OPEN}\n", f"\n{HERMES_CLOSE}", between="\n"),
    "llama": CallShape("", "", "parameters"),
    "mistral": CallShape("", "", between=", ", opening="[", closing="]"),  # after its special token
}


def calls_only(functions: Sequence[Function], family: str, *, at_most_one: bool) -> list[str]:
    """Return the rules of `calls`: one or more calls and nothing else."""
    shape = SHAPES[family]
    several = "" if at_most_one or shape.between is None else f" ({_quoted(shape.between)} call)*"
    rule = " ".join(filter(None, [_quoted(shape.opening), f"call{several}", _quoted(shape.closing)]))
    return [f"calls: {rule}", *_call_rules(functions, shape, shape.before)]


def text_with_calls(functions: Sequence[Function]) -> list[str]:
    """Return the rules of `text`: any text, but whatever begins like a hermes call must be a valid call."""
    shape = SHAPES["hermes"]
    # The opening tag belongs to `to_call`, so `call` does not repeat it.
    return [
        f"text: {ANYTHING} | (to_call call)+ {ANYTHING}",
        f"to_call[lazy]: /(.|\\n)*{HERMES_OPEN}/",
        *_call_rules(functions, shape, shape.before.removeprefix(HERMES_OPEN)),
    ]


def json_text(schema: Mapping[str, Any]) -> list[str]:
    """Return the rules of `json_text`."""
    return [f"json_text: {_json(schema)}"]


def full_grammar(answer: str, rules: list[str], reasons: Reasons) -> str:
    """Return the grammar of an `answer` defined by `rules`, with optional reasoning before it."""
    rules = [f"answer: {answer}", *rules]
    if reasons is Reasons.NEVER:
        return "\n".join(["start: answer", *rules])
    start = "start: thought answer" if reasons is Reasons.BEGUN else "start: thought answer | answer"
    opening = "" if reasons is Reasons.BEGUN else f"/\\n*/ {_quoted(OPEN)} "
    close = CLOSE.replace("/", "\\/")
    thought = [f"thought: {opening}to_answer /\\n*/", f"to_answer[lazy]: /(.|\\n)*{close}/"]
    return "\n".join([start, *thought, *rules])


def _call_rules(functions: Sequence[Function], shape: CallShape, before: str) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{number}" for number in range(len(functions)))]
    for number, function in enumerate(functions):
        start = f'{before}{{"name": {json.dumps(function["name"])}, "{shape.arguments}": '
        rules += [
            f"call_{number}: {_quoted(start)} arguments_{number} {_quoted('}' + shape.after)}",
            f"arguments_{number}: {_json(function.get('parameters') or ANY_OBJECT)}",
        ]
    return rules


def _json(schema: Mapping[str, Any]) -> str:
    """Return the schema as a rule, in which `JSON_OPTIONS` override options of the schema."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _quoted(text: str) -> str:
    """Return the text as a literal of the grammar."""
    return json.dumps(text) if text else ""
