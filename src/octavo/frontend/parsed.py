"""Answers that are held to a schema, and what they are as objects."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pydantic

from octavo.errors import GrammarError
from octavo.frontend.output import Choice, RequestOutput
from octavo.grammar.specs import of_schema
from octavo.protocol import SamplingParams

Schema = Mapping[str, Any] | type[pydantic.BaseModel]


def held_to(schema: Schema | None, params: SamplingParams) -> SamplingParams:
    if schema is None:
        return params
    try:
        grammar = of_schema(schema)
    except GrammarError as error:
        raise error.in_field("schema") from error
    return msgspec.structs.replace(params, grammar=grammar)


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
