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


def calls_only(
    functions: Sequence[Mapping[str, Any]], family: str, *, at_most_one: bool, options: Mapping[str, Any]
) -> list[str]:
    """Rules of `answer`: one call or more, and nothing else. `options` are those of every `%json`."""
    shape = SHAPES[family]
    several = "" if at_most_one or shape.between is None else f" ({_quoted(shape.between)} call)*"
    rule = " ".join(filter(None, [_quoted(shape.opening), f"call{several}", _quoted(shape.closing)]))
    return [f"answer: {rule}", *_call_rules(functions, shape, shape.before, options)]


def text_with_calls(functions: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[str]:
    """Rules of `answer`: free text, in which what begins like a call of the family hermes is a valid one."""
    shape = SHAPES["hermes"]
    # The tag ends the text before it, so that it is not in `call` again.
    return [
        f"answer: {ANYTHING} | (to_call call)+ {ANYTHING}",
        f"to_call[lazy]: /(.|\\n)*{HERMES_OPEN}/",
        *_call_rules(functions, shape, shape.before.removeprefix(HERMES_OPEN), options),
    ]


def only_json(schema: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Rules of `answer`: a JSON text."""
    return [f"answer: {_json(schema, options)}"]


def either(first: list[str], second: list[str]) -> list[str]:
    """Rules of `answer`: as the first say, or as the second."""
    renamed = [_renamed(rule, "first") for rule in first] + [_renamed(rule, "second") for rule in second]
    return ["answer: answer_first | answer_second", *renamed]


def whole(answer: list[str], reasons: Reasons) -> str:
    """The grammar, with room for reasoning before the answer."""
    if reasons is Reasons.NEVER:
        return "\n".join(["start: answer", *answer])
    start = "start: thought answer" if reasons is Reasons.BEGUN else "start: thought answer | answer"
    opening = "" if reasons is Reasons.BEGUN else f"/\\n*/ {_quoted(OPEN)} "
    close = CLOSE.replace("/", "\\/")
    thought = [f"thought: {opening}to_answer /\\n*/", f"to_answer[lazy]: /(.|\\n)*{close}/"]
    return "\n".join([start, *thought, *answer])


def _call_rules(
    functions: Sequence[Mapping[str, Any]], shape: CallShape, before: str, options: Mapping[str, Any]
) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{number}" for number in range(len(functions)))]
    for number, function in enumerate(functions):
        start = f'{before}{{"name": {json.dumps(function["name"])}, "{shape.arguments}": '
        rules += [
            f"call_{number}: {_quoted(start)} arguments_{number} {_quoted('}' + shape.after)}",
            f"arguments_{number}: {_json(function.get('parameters') or ANY_OBJECT, options)}",
        ]
    return rules


def _json(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """A schema may not bring options of its own."""
    return "%json " + json.dumps({**schema, "x-guidance": dict(options)})


def _quoted(text: str) -> str:
    """As a literal of the grammar."""
    return json.dumps(text) if text else ""


def _renamed(rule: str, suffix: str) -> str:
    """Only `answer` is in both sets of rules: calls are in one of them."""
    return rule.replace("answer:", f"answer_{suffix}:", 1) if rule.startswith("answer:") else rule
