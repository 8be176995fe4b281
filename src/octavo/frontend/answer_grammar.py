"""The grammar of an answer: what the caller asked for, together with calls and reasoning."""

from typing import Any

from octavo.dialect import call_grammar
from octavo.dialect.reasoning import Reasons
from octavo.errors import RequestError, grammar_of
from octavo.frontend.intake import FieldGrammar
from octavo.frontend.tool_use import ToolUse
from octavo.grammar import specs
from octavo.grammar.limits import check_spec, schema_of
from octavo.protocol import GrammarKind, GrammarSpec


def answer_grammars(
    asked: FieldGrammar | None, use: ToolUse, reasons: Reasons
) -> tuple[GrammarSpec | None, list[FieldGrammar]]:
    """The grammar, None if any text will do; and all that must be checked before it is used, in order, so
    that an error names the field at fault."""
    if asked is not None and reasons is Reasons.NEVER and not use.tools:
        return asked.spec, [asked]
    parts = [] if asked is None else [asked]
    for tool in use.tools:
        if use.is_required or tool.is_strict or asked is not None:
            field = f"tools[{tool.index}].function.parameters"
            schema = tool.function.get("parameters") or call_grammar.ANY_OBJECT
            parts.append(FieldGrammar(field, schema_grammar(schema, field)))
    for part in parts:  # what can be told without compiling: the combination is made of parts that passed
        with grammar_of(part.field):
            check_spec(part.spec)
    spec = _combined(asked, use, reasons)
    if spec is None:
        return None, parts
    field = "tools" if use.tools or asked is None else asked.field
    return spec, [*parts, FieldGrammar(field, spec)]


def schema_grammar(schema: specs.Schema, field: str) -> GrammarSpec:
    with grammar_of(field):
        return specs.of_schema(schema)


def _combined(asked: FieldGrammar | None, use: ToolUse, reasons: Reasons) -> GrammarSpec | None:
    """An answer is calls if they are required; else as it was asked for, or calls. Before either may stand
    reasoning."""
    if use.is_required:
        return _made("calls", _calls_only(use), reasons)
    if asked is None:
        return _strict(use, reasons)
    schema = _schema(asked.spec)
    if schema is None:
        raise RequestError(f"{asked.field} with tools or reasoning takes a JSON schema only", asked.field)
    rules = call_grammar.json_text(schema)
    if not use.tools:
        return _made("json_text", rules, reasons)
    return _made("json_text | calls", rules + _calls_only(use), reasons)


def _strict(use: ToolUse, reasons: Reasons) -> GrammarSpec | None:
    """Of text with calls, of which some functions must be called as they are described."""
    if use.family != "hermes" or not any(tool.is_strict for tool in use.tools):
        return None
    functions = [tool.function if tool.is_strict else {"name": tool.name} for tool in use.tools]
    return _made("text", call_grammar.text_with_calls(functions), reasons)


def _calls_only(use: ToolUse) -> list[str]:
    return call_grammar.calls_only(use.functions, use.forced_family, at_most_one=use.max_calls == 1)


def _made(answer: str, rules: list[str], reasons: Reasons) -> GrammarSpec:
    return GrammarSpec(GrammarKind.CALLS, call_grammar.whole(answer, rules, reasons))


def _schema(spec: GrammarSpec) -> dict[str, Any] | None:
    if spec.kind is GrammarKind.JSON_OBJECT:
        return call_grammar.ANY_OBJECT
    return schema_of(spec) if spec.kind is GrammarKind.JSON_SCHEMA else None
