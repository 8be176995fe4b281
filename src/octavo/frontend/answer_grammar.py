"""The grammar of an answer: the requested format, combined with tool calls and reasoning."""

from typing import Any

from octavo.dialect import call_grammar
from octavo.dialect.reasoning import Reasons
from octavo.errors import RequestError, grammar_of
from octavo.frontend.intake import FieldGrammar
from octavo.frontend.tool_use import ToolUse
from octavo.grammar import specs
from octavo.grammar.compiler import lark_of
from octavo.grammar.limits import check_spec, schema_of, with_lark
from octavo.protocol import GrammarKind, GrammarSpec


def answer_grammars(
    requested: FieldGrammar | None, use: ToolUse, reasons: Reasons
) -> tuple[GrammarSpec | None, list[FieldGrammar]]:
    """Return the grammar (None if any text is allowed), and all grammars to check before it is used.

    They are checked in this order, so that an error names the field that caused it.
    """
    if requested is not None and reasons is Reasons.NEVER and not use.tools:
        return requested.spec, [requested]
    parts = [] if requested is None else [requested]
    for tool in use.tools:
        if tool.grammar is not None:
            parts.append(FieldGrammar(tool.field, tool.grammar))
        elif use.is_required or tool.is_strict or requested is not None:
            schema = tool.function.get("parameters") or call_grammar.ANY_OBJECT
            parts.append(FieldGrammar(tool.field, schema_grammar(schema, tool.field)))
    # Fast checks, without compiling. The combined grammar then consists of parts that passed.
    for part in parts:
        with grammar_of(part.field):
            check_spec(part.spec)
    spec = _combine(requested, use, reasons)
    if spec is None:
        return None, parts
    field = "tools" if use.tools or requested is None else requested.field
    return spec, [*parts, FieldGrammar(field, spec)]


def schema_grammar(schema: specs.Schema, field: str) -> GrammarSpec:
    with grammar_of(field):
        return specs.of_schema(schema)


def _combine(requested: FieldGrammar | None, use: ToolUse, reasons: Reasons) -> GrammarSpec | None:
    """Return the grammar of the whole answer.

    If calls are required, the answer consists of calls. Otherwise it has the requested format or consists of
    calls. Reasoning may precede either.
    """
    if use.is_required:
        return _spec("calls", _calls_only(use), use, reasons)
    if requested is None:
        return _strict(use, reasons)
    schema = _schema(requested.spec)
    if schema is None:
        raise RequestError(
            f"{requested.field} with tools or reasoning must be a JSON schema", requested.field
        )
    rules = call_grammar.json_text(schema)
    if not use.tools:
        return _spec("json_text", rules, use, reasons)
    return _spec("json_text | calls", rules + _calls_only(use), use, reasons)


def _strict(use: ToolUse, reasons: Reasons) -> GrammarSpec | None:
    """Return the grammar of text with calls, where arguments of strict tools conform to their schemas."""
    if not use.is_strict:
        return None
    return _spec("text", call_grammar.text_with_calls(_functions(use), _text_inputs(use)), use, reasons)


def _calls_only(use: ToolUse) -> list[str]:
    return call_grammar.calls_only(
        _functions(use), _text_inputs(use), use.forced_family, at_most_one=use.max_calls == 1
    )


def _functions(use: ToolUse) -> list[call_grammar.Function]:
    """Return the functions, with the schemas to which their arguments must conform."""
    return [
        tool.function if use.is_forced or tool.is_strict else {"name": tool.name} for tool in use.functions
    ]


def _text_inputs(use: ToolUse) -> list[call_grammar.TextInput]:
    return [
        call_grammar.TextInput(tool.name, lark_of(tool.grammar))
        for tool in use.tools
        if tool.grammar is not None
    ]


def _spec(answer: str, rules: list[str], use: ToolUse, reasons: Reasons) -> GrammarSpec:
    text = call_grammar.full_grammar(answer, rules, reasons)
    if use.text_tools:
        text = with_lark(text, call_grammar.row_items(_functions(use), len(use.text_tools)))
    return GrammarSpec(GrammarKind.CALLS, text)


def _schema(spec: GrammarSpec) -> dict[str, Any] | None:
    if spec.kind is GrammarKind.JSON_OBJECT:
        return call_grammar.ANY_OBJECT
    return schema_of(spec) if spec.kind is GrammarKind.JSON_SCHEMA else None
