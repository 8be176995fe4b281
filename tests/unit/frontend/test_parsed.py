"""Complete answers under a schema are returned as objects."""

import jsonschema
import msgspec
import pydantic
import pytest

from data.json_types import JsonObject
from octavo import LLM, SamplingParams
from octavo.dialect.pieces import ParsedCall
from octavo.frontend.output import Choice, RequestOutput
from octavo.frontend.parsed import with_objects
from octavo.protocol import Timings

PAIR = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


class Pair(pydantic.BaseModel):
    a: int = pydantic.Field(ge=1, le=9)
    b: bool


def test_objects_of_pydantic_models_and_schemas(tiny_llm: LLM) -> None:
    params = SamplingParams(max_tokens=64, seed=5, n=3)
    (output,) = tiny_llm.generate("x", params, schema=Pair)
    assert all(isinstance(choice.parsed, Pair) for choice in output.choices)
    assert isinstance(output.parsed, Pair)
    for output in tiny_llm.chat([{"role": "user", "content": "x"}], params, schema=PAIR):
        for choice in output.choices:
            jsonschema.validate(choice.parsed, PAIR)


def test_an_incomplete_object_is_none(tiny_llm: LLM) -> None:
    (output,) = tiny_llm.generate("x", SamplingParams(max_tokens=3, seed=5), schema=Pair)
    assert (output.finish_reason, output.parsed) == ("length", None)
    (free,) = tiny_llm.generate("x", SamplingParams(max_tokens=3, seed=5))
    assert free.parsed is None


@pytest.mark.parametrize("schema", [PAIR, Pair], ids=["schema", "model"])
def test_answers_without_a_complete_object_are_none(schema: JsonObject | type[Pair]) -> None:
    """A stop string can truncate an object, and a model with tools can call one instead."""
    whole = Choice(
        index=0,
        text='{"a": 1, "b": true}',
        token_ids=(),
        logprobs=None,
        finish_reason="stop",
        stop_reason=2,
        timings=Timings(0.0, 0.0, 0.0),
    )
    stopped = msgspec.structs.replace(whole, index=1, text='{"a": 1, ', stop_reason='"b"')
    called = msgspec.structs.replace(whole, index=2, text="", calls=(ParsedCall("go", "{}", "id"),))
    output = RequestOutput(
        request_id="r",
        prompt="x",
        prompt_ids=(1,),
        prompt_logprobs=None,
        choices=(whole, stopped, called),
        num_cached=0,
        seed=0,
    )
    first, *others = with_objects(schema, output).choices
    assert first.parsed in ({"a": 1, "b": True}, Pair(a=1, b=True))
    assert [choice.parsed for choice in others] == [None, None]
