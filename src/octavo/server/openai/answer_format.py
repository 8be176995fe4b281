"""What a request wants its answer to conform to, in either of the ways that clients write it."""

from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.intake import FieldGrammar
from octavo.grammar import specs
from octavo.protocol import GrammarKind, GrammarSpec
from octavo.server.http.errors import invalid
from octavo.server.openai.schema import SamplingFields, StructuredOutputs


def wanted_grammar(body: SamplingFields) -> FieldGrammar | None:
    """None if any text will do."""
    wanted = body.format_wanted
    if body.structured_outputs is not None:
        if wanted is not None:
            raise invalid("response_format and structured_outputs exclude each other", "structured_outputs")
        return _structured(body.structured_outputs)
    if wanted is None:
        return None
    if wanted.type == "json_object":
        return FieldGrammar("response_format", GrammarSpec(GrammarKind.JSON_OBJECT))
    named = wanted.json_schema
    schema = wanted.schema_ if named is None else named.schema_
    param = "response_format.schema" if named is None else "response_format.json_schema.schema"
    if schema is None:
        raise invalid(f"{param} is missing", param)
    return FieldGrammar(param, schema_grammar(schema, param))


def _structured(wanted: StructuredOutputs) -> FieldGrammar:
    given = [name for name in ("json_", "regex", "choice", "grammar") if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise invalid("structured_outputs takes one of json, regex, choice and grammar", "structured_outputs")
    param = f"structured_outputs.{given[0].rstrip('_')}"
    return FieldGrammar(param, _structured_spec(wanted, param))


def _structured_spec(wanted: StructuredOutputs, param: str) -> GrammarSpec:
    if isinstance(wanted.json_, str):
        return GrammarSpec(GrammarKind.JSON_SCHEMA, wanted.json_)
    if wanted.json_ is not None:
        return schema_grammar(wanted.json_, param)
    if wanted.choice is not None:
        return specs.of_choices(wanted.choice)
    if wanted.regex is not None:
        return GrammarSpec(GrammarKind.REGEX, wanted.regex)
    assert wanted.grammar is not None
    return GrammarSpec(GrammarKind.LARK, wanted.grammar)
