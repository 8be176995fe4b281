"""Answers that are held to a schema, and what they are as objects."""

from typing import Any

import msgspec

from octavo.frontend.answer_grammar import schema_grammar
from octavo.frontend.output import Choice, RequestOutput
from octavo.grammar.specs import Schema
from octavo.protocol import SamplingParams


def held_to(schema: Schema | None, params: SamplingParams) -> SamplingParams:
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
        return None  # the beginning of an object, or no object at all
    if isinstance(schema, type):
        return schema.model_validate_json(choice.text)
    return msgspec.json.decode(choice.text)
