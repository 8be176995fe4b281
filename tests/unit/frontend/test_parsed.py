"""Answers held to a schema come back as objects, if they are whole."""

import jsonschema
import pydantic

from octavo import LLM, SamplingParams

PAIR = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


class Pair(pydantic.BaseModel):
    a: int = pydantic.Field(ge=1, le=9)
    b: bool


def test_objects_of_a_model_and_of_a_schema(tiny_llm: LLM) -> None:
    params = SamplingParams(max_tokens=64, seed=5, n=3)
    (output,) = tiny_llm.generate("x", params, schema=Pair)
    assert all(isinstance(choice.parsed, Pair) for choice in output.choices)
    assert isinstance(output.parsed, Pair)
    for output in tiny_llm.chat([{"role": "user", "content": "x"}], params, schema=PAIR):
        for choice in output.choices:
            jsonschema.validate(choice.parsed, PAIR)


def test_the_beginning_of_an_object_is_none(tiny_llm: LLM) -> None:
    (output,) = tiny_llm.generate("x", SamplingParams(max_tokens=3, seed=5), schema=Pair)
    assert (output.finish_reason, output.parsed) == ("length", None)
    (free,) = tiny_llm.generate("x", SamplingParams(max_tokens=3, seed=5))
    assert free.parsed is None
