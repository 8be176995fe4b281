"""Answers that conform to a schema, and their conversion to objects."""

from typing import Any

import msgspec

from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.output import Choice, RequestOutput
from octavo.grammar.specs import Schema
from octavo.protocol import SamplingParams


def constrained_by(schema: Schema | None, params: SamplingParams) -> SamplingParams:
    if schema is None:
        return params
    return msgspec.structs.replace(params, grammar=schema_grammar(schema, "schema"))


def with_objects(schema: Schema | None, output: RequestOutput) -> RequestOutput:
    if schema is None:
        return output
    choices = [msgspec.structs.replace(choice, parsed=_object(schema, choice)) for choice in output.choices]
    return msgspec.structs.replace(output, choices=tuple(choices))


def _object(schema: Schema, choice: Choice) -> Any:
    was_cut_off = choice.finish_reason != "stop" or isinstance(choice.stop_reason, str)
    if was_cut_off or choice.calls:
        return None  # an incomplete object, or none
    if isinstance(schema, type):
        return schema.model_validate_json(choice.text)
    return msgspec.json.decode(choice.text)
