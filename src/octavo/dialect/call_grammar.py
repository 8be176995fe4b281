"""Grammars of answers with calls: what a model must write, so that its calls are valid.

A grammar is text in llguidance's dialect of Lark, made of rules; `%json` is a rule that is a JSON schema.
Reasoning before the answer stays free: only its end is looked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.dialect.families import HERMES_CLOSE, HERMES_OPEN
from octavo.dialect.reasoning import CLOSE, OPEN, Reasons
from octavo.grammar.compiler import JSON_OPTIONS

Function = Mapping[str, Any]  # name, and a schema of its parameters

ANYTHING = "/(.|\\n)*/"
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class CallShape:
    """How a family writes one call, {"name": ..., "arguments": ...} in something, and how several."""

    before: str
    after: str
    arguments: str = "arguments"
    between: str | None = None  # None: there can be one call only
    opening: str = ""  # around all of them
    closing: str = ""


SHAPES = {
    "hermes": CallShape(f"{HERMES_OPEN}\n", f"\n{HERMES_CLOSE}", between="\n"),
    "llama": CallShape("", "", "parameters"),
    "mistral": CallShape("", "", between=", ", opening="[", closing="]"),  # after its special token
}


def calls_only(functions: Sequence[Function], family: str, *, at_most_one: bool) -> list[str]:
    """Rules of `calls`: one or more, and nothing else."""
    shape = SHAPES[family]
    several = "" if at_most_one or shape.between is None else f" ({_quoted(shape.between)} call)*"
    rule = " ".join(filter(None, [_quoted(shape.opening), f"call{several}", _quoted(shape.closing)]))
    return [f"calls: {rule}", *_call_rules(functions, shape, shape.before)]


def text_with_calls(functions: Sequence[Function]) -> list[str]:
    """Rules of `text`: anything, but what begins like a call of the family hermes is a valid one."""
    shape = SHAPES["hermes"]
    # The tag ends the text before it, so that it is not in `call` again.
    return [
        f"text: {ANYTHING} | (to_call call)+ {ANYTHING}",
        f"to_call[lazy]: /(.|\\n)*{HERMES_OPEN}/",
        *_call_rules(functions, shape, shape.before.removeprefix(HERMES_OPEN)),
    ]


def json_text(schema: Mapping[str, Any]) -> list[str]:
    """Rules of `json_text`."""
    return [f"json_text: {_json(schema)}"]


def whole(answer: str, rules: list[str], reasons: Reasons) -> str:
    """The grammar of an `answer` made of rules, with room for reasoning before it."""
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
    """A schema may not bring options of its own."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _quoted(text: str) -> str:
    """As a literal of the grammar."""
    return json.dumps(text) if text else ""
