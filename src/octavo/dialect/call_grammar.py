"""Grammars of answers with tool calls, which force a model to write valid calls.

A grammar is a list of rules in llguidance's dialect of Lark; `%json` is a rule given as a JSON schema, and
`%lark` one given as a grammar. Reasoning before the answer is not constrained: the grammar only detects its
end.

The input of a *text tool* conforms to a grammar that the client sends. A JSON string cannot be constrained to
it, because escape sequences are not known to the grammar. So the input follows the call as it is, up to the
end of the answer:

    <tool_call>
    {"name": "apply_patch"}
    *** Begin Patch
    ...
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.dialect.families import FENCE_OPEN, HERMES_CLOSE, HERMES_OPEN
from octavo.dialect.reasoning import CLOSE, OPEN, Reasons
from octavo.dialect.strict_calls import TO_INPUT
from octavo.grammar.compiler import JSON_OPTIONS, WHITESPACE

Function = Mapping[str, Any]  # its name and the schema of its parameters

ANYTHING = "/(.|\\n)*/"
ANY_OBJECT: dict[str, Any] = {"type": "object"}
SPACES = "[ \\t\\r\\n]*"
GAP = f"({WHITESPACE})?"  # between two parts of a JSON text

# Items of the parser, as counted in grammars of this version of llguidance, rounded up.
ITEMS_BEFORE_NAME = 30  # besides those of the tools
ITEMS_OF_OBJECT, ITEMS_OF_PROPERTY = 8, 4


@dataclass(frozen=True)
class TextInput:
    """A text tool: its name, and the grammar of its input in Lark."""

    name: str
    grammar: str


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


def calls_only(
    functions: Sequence[Function], texts: Sequence[TextInput], family: str, *, at_most_one: bool
) -> list[str]:
    """Return the rules of `calls`: one or more calls and nothing else. A call with text is the last one."""
    shape = SHAPES[family]
    between = None if at_most_one or shape.between is None else _quoted(shape.between)
    forms = []
    if functions:
        several = "" if between is None else f" ({between} call)*"
        forms.append(
            " ".join(filter(None, [_quoted(shape.opening), f"call{several}", _quoted(shape.closing)]))
        )
    if texts:
        before = "" if between is None or not functions else f"(call {between})* "
        forms.append(f"{before}text_call")
    return [f"calls: {' | '.join(forms)}", *_call_rules(functions, texts, shape, shape.before)]


def text_with_calls(functions: Sequence[Function], texts: Sequence[TextInput]) -> list[str]:
    """Return the rules of `text`: any text, but whatever begins like a hermes call must be a valid call.

    Models that were trained more on code than on calls write *bare* calls, without a tag: at the beginning of
    the answer, or in a code fence. `strict_calls` reads exactly the calls of this grammar. A rule `to_x` is
    all of the answer up to a state:

        free    anything may follow
        call    after a tag: a call must follow
        name    after {"name": of what may be a bare call: a tool and the rest of its call, or something else

    The rules are left-recursive. In right-recursive ones, every call would add a level to the parser.
    """
    shape = SHAPES["hermes"]
    names = [json.dumps(name) for name in (*(one["name"] for one in functions), *(one.name for one in texts))]
    literals = [_quoted(name) for name in names]
    count = len(functions)
    # After the name of a text tool, models want to write arguments. They must not change the name instead.
    begun = [f'{_quoted(name[:-1])} /([^"A-Za-z0-9][^"]*"?)?/' for name in names[count:]]
    calls = ["to_call call"] * bool(functions) + [f"to_name bare_{i}" for i in range(count)]
    last = ["to_call text_call"] * bool(texts) + [f"to_name bare_text_{i}" for i in range(len(texts))]
    colon = f'{SPACES}\\{{{SPACES}"name"{SPACES}:'
    rest = '[^" \\t\\r\\n](.|\\n)*'  # after {"name": and space: no string
    return [
        f"text: {' | '.join([f'to_free {ANYTHING}', 'to_name', f'to_name /{rest}/', *last])}",
        f"to_free: | {' | '.join(['to_name OTHER', *calls])}",
        # The opening tag belongs to `to_call`, so `call` does not repeat it.
        "to_call: to_free to_tag | to_name rest_to_tag",
        "to_name: to_colon SPACES",
        "to_colon: first_colon | to_free to_fence | to_name rest_to_fence",
        f"to_tag[lazy]: /(.|\\n)*{HERMES_OPEN}/",
        f"rest_to_tag[lazy]: /({rest})?{HERMES_OPEN}/",
        f"first_colon[lazy]: /{colon}/",
        f"to_fence[lazy]: /(.|\\n)*{FENCE_OPEN}{colon}/",
        f"rest_to_fence[lazy]: /({rest})?{FENCE_OPEN}{colon}/",
        f"SPACES: /{SPACES}/",
        f'OTHER: /"[^"<`]*"?/ & ~({" | ".join(literals + begun)})',
        f'TO_ARGUMENTS: /{GAP},{GAP}"arguments"{GAP}:{GAP}/',
        f"CLOSE: /{GAP}\\}}/",
        *_call_rules(functions, texts, shape, shape.before.removeprefix(HERMES_OPEN)),
        *(f"bare_{i}: {literals[i]} TO_ARGUMENTS arguments_{i} CLOSE" for i in range(count)),
        *(
            f"bare_text_{i}: {literal} {_quoted(TO_INPUT)} input_{i}"
            for i, literal in enumerate(literals[count:])
        ),
    ]


def row_items(functions: Sequence[Function], num_texts: int) -> int:
    """Return how many items the parser may need outside the inputs: see `grammar.limits.row_limit`.

    Before the name of a tool, it needs one for each. After it, it needs some for each property that may be
    next; these may be properties of several objects, if the schema has alternatives.
    """
    schemas = (function.get("parameters") or ANY_OBJECT for function in functions)
    before = len(functions) + num_texts + ITEMS_BEFORE_NAME
    return max(before, max(map(_items_of_objects, schemas), default=0))


def _items_of_objects(schema: Any) -> int:
    """Return the items for all objects in the schema, as if all could begin at the same position."""
    if isinstance(schema, list):
        return sum(map(_items_of_objects, schema))
    if not isinstance(schema, Mapping):
        return 0
    properties = schema.get("properties")
    own = ITEMS_OF_OBJECT + ITEMS_OF_PROPERTY * len(properties) if isinstance(properties, Mapping) else 0
    return own + sum(map(_items_of_objects, schema.values()))


def json_text(schema: Mapping[str, Any]) -> list[str]:
    """Return the rules of `json_text`."""
    return [f"json_text: {_json(schema)}"]


def full_grammar(answer: str, rules: list[str], reasons: Reasons) -> str:
    """Return the grammar of an `answer` defined by `rules`, with optional reasoning before it."""
    rules = [f"answer: {answer}", *rules]
    if reasons is Reasons.NEVER:
        return "\n".join(["start: answer", *rules])
    start = "start: thought answer" if reasons is Reasons.BEGUN else "start: thought answer | answer"
    close = CLOSE.replace("/", "\\/")
    thought = [
        f"thought: {'' if reasons is Reasons.BEGUN else 'to_thought '}to_answer /\\n*/",
        f"to_answer[lazy]: /(.|\\n)*{close}/",
    ]
    if reasons is Reasons.MAYBE:  # lazy, so that an answer that begins with the tag is nothing else
        thought.append(f"to_thought[lazy]: /{SPACES}{OPEN}/")
    return "\n".join([start, *thought, *rules])


def _call_rules(
    functions: Sequence[Function], texts: Sequence[TextInput], shape: CallShape, before: str
) -> list[str]:
    rules = []
    if functions:
        rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(functions))))
    for number, function in enumerate(functions):
        start = f'{before}{{"name": {json.dumps(function["name"])}, "{shape.arguments}": '
        rules += [
            f"call_{number}: {_quoted(start)} arguments_{number} {_quoted('}' + shape.after)}",
            f"arguments_{number}: {_json(function.get('parameters') or ANY_OBJECT)}",
        ]
    if texts:
        rules.append("text_call: " + " | ".join(f"text_call_{number}" for number in range(len(texts))))
    for number, tool in enumerate(texts):
        start = f'{before}{{"name": {json.dumps(tool.name)}{TO_INPUT}'
        # The grammar has been checked alone, so its braces are balanced.
        rules += [
            f"text_call_{number}: {_quoted(start)} input_{number}",
            f"input_{number}: %lark {{",
            tool.grammar,
            "}",
        ]
    return rules


def _json(schema: Mapping[str, Any]) -> str:
    """Return the schema as a rule, in which `JSON_OPTIONS` override options of the schema."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def _quoted(text: str) -> str:
    """Return the text as a literal of the grammar."""
    return json.dumps(text) if text else ""
