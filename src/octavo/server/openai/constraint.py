"""What a request wants its answer to conform to, as a grammar that was checked."""

import asyncio
from typing import Any

from octavo.dialect import call_grammar
from octavo.dialect.reasoning import Reasons
from octavo.errors import GrammarError, GrammarNotChecked
from octavo.grammar import specs
from octavo.grammar.limits import schema_of
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.server.http.errors import ApiError, invalid, unavailable
from octavo.server.openai.schema import SamplingFields, StructuredOutputs
from octavo.server.openai.tool_use import ToolUse
from octavo.server.state import ServerState


async def constraint(
    state: ServerState, body: SamplingFields, use: ToolUse, reasons: Reasons
) -> GrammarSpec | None:
    """None if any text will do. Raises ApiError that names the field."""
    asked, param = _asked_for(body)
    if asked is not None:
        await _check(state, asked, param)
    for index, tool in enumerate(use.tools):
        if use.is_required or tool.function.strict or asked is not None:
            field = f"tools[{index}].function.parameters"
            await _check(state, _of_schema(tool.function.parameters or call_grammar.ANY_OBJECT, field), field)
    spec = _combined(asked, param, use, reasons)
    if spec is not None and spec != asked:
        await _check(state, spec, "tools" if use.tools else param)
    return spec


def _combined(asked: GrammarSpec | None, param: str, use: ToolUse, reasons: Reasons) -> GrammarSpec | None:
    """An answer is calls if they are required; else as it was asked for, or calls."""
    if use.is_required:
        return _made("calls", _calls_only(use), reasons)
    if asked is None:
        return _strict(use, reasons)
    if reasons is Reasons.NEVER and not use.tools:
        return asked
    schema = _schema(asked)
    if schema is None:
        raise invalid(f"{param} with tools or reasoning takes a JSON schema only", param)
    rules = call_grammar.json_text(schema)
    if not use.tools:
        return _made("json_text", rules, reasons)
    return _made("json_text | calls", rules + _calls_only(use), reasons)


def _strict(use: ToolUse, reasons: Reasons) -> GrammarSpec | None:
    """Of text with calls, of which some functions must be called as they are described."""
    strict = {tool.function.name for tool in use.tools if tool.function.strict}
    if not strict or use.family != "hermes":
        return None
    functions = [
        function if function["name"] in strict else {"name": function["name"]} for function in use.functions
    ]
    return _made("text", call_grammar.text_with_calls(functions), reasons)


def _calls_only(use: ToolUse) -> list[str]:
    return call_grammar.calls_only(use.functions, use.forced_family, at_most_one=use.max_calls == 1)


def _made(answer: str, rules: list[str], reasons: Reasons) -> GrammarSpec:
    return GrammarSpec(GrammarKind.CALLS, call_grammar.whole(answer, rules, reasons))


def _schema(spec: GrammarSpec) -> dict[str, Any] | None:
    if spec.kind is GrammarKind.JSON_OBJECT:
        return call_grammar.ANY_OBJECT
    return schema_of(spec) if spec.kind is GrammarKind.JSON_SCHEMA else None


# -- what was asked for --------------------------------------------------------------------------------------


def _asked_for(body: SamplingFields) -> tuple[GrammarSpec | None, str]:
    """With the name of its field."""
    wanted = body.format_wanted
    if body.structured_outputs is not None:
        if wanted is not None:
            raise invalid("response_format and structured_outputs exclude each other", "structured_outputs")
        return _structured(body.structured_outputs)
    if wanted is None:
        return None, "response_format"
    if wanted.type == "json_object":
        return GrammarSpec(GrammarKind.JSON_OBJECT), "response_format"
    named = wanted.json_schema
    schema = wanted.schema_ if named is None else named.schema_
    param = "response_format.schema" if named is None else "response_format.json_schema.schema"
    if schema is None:
        raise invalid(f"{param} is missing", param)
    return _of_schema(schema, param), param


def _of_schema(schema: dict[str, Any], param: str) -> GrammarSpec:
    try:
        return specs.of_schema(schema)
    except GrammarError as error:
        raise _refused(error, param) from error


def _structured(wanted: StructuredOutputs) -> tuple[GrammarSpec, str]:
    given = [name for name in ("json_", "regex", "choice", "grammar") if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise invalid("structured_outputs takes one of json, regex, choice and grammar", "structured_outputs")
    param = f"structured_outputs.{given[0].rstrip('_')}"
    if wanted.json_ is not None:
        if isinstance(wanted.json_, str):
            return GrammarSpec(GrammarKind.JSON_SCHEMA, wanted.json_), param
        return _of_schema(wanted.json_, param), param
    if wanted.choice is not None:
        return specs.of_choices(wanted.choice), param
    if wanted.regex is not None:
        return GrammarSpec(GrammarKind.REGEX, wanted.regex), param
    assert wanted.grammar is not None
    return GrammarSpec(GrammarKind.LARK, wanted.grammar), param


async def _check(state: ServerState, spec: GrammarSpec, param: str) -> None:
    try:
        await asyncio.wrap_future(state.grammars.submit(spec))
    except GrammarNotChecked as error:
        raise unavailable(str(error), code="grammars_busy") from error
    except GrammarError as error:
        raise _refused(error, param) from error


def _refused(error: GrammarError, param: str) -> ApiError:
    return ApiError(400, f"{param}: {error}", param=param, code="invalid_grammar")
