"""Specs of schemas, pydantic models and choices, with a tiny model."""

from typing import Annotated, Literal

import pydantic
import pytest
from annotated_types import Len

from octavo import LLM, SamplingParams
from octavo.errors import GrammarError
from octavo.grammar.specs import of_choices, of_schema


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=0, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: Annotated[list[Literal["sit", "roll"]], Len(1, 2)]


class Owner(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(max_length=6)] | None
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


def test_answers_validate_against_their_pydantic_model(tiny_llm: LLM) -> None:
    params = SamplingParams(seed=3, n=6, max_tokens=300, grammar=of_schema(Owner))
    (output,) = tiny_llm.generate("Who?", params, progress=False)
    owners = [Owner.model_validate_json(c.text) for c in output.choices if c.finish_reason == "stop"]
    assert len(owners) >= 3
    assert {type(owner.pet) for owner in owners} == {Cat, Dog}


def test_properties_are_in_the_order_of_the_schema(tiny_llm: LLM) -> None:
    properties = {name: {"type": "boolean"} for name in ("z", "a", "m")}
    schema = {"type": "object", "properties": properties, "required": ["a", "m", "z"]}
    params = SamplingParams(
        seed=1, max_tokens=60, grammar=of_schema({**schema, "additionalProperties": False})
    )
    (output,) = tiny_llm.generate("Which?", params, progress=False)
    text = output.choices[0].text
    assert text.index('"z"') < text.index('"a"') < text.index('"m"')


def test_answers_are_exactly_the_choices(tiny_llm: LLM) -> None:
    choices = ["to be", "not to be", "that's the (*) question?\n"]
    params = SamplingParams(temperature=3.0, seed=2, n=12, max_tokens=40, grammar=of_choices(choices))
    (output,) = tiny_llm.generate("?", params, progress=False)
    assert {choice.text for choice in output.choices} == set(choices)
    assert {choice.finish_reason for choice in output.choices} == {"stop"}


def test_schemas_that_are_not_json_are_rejected() -> None:
    with pytest.raises(GrammarError):
        of_schema({"const": object()})
