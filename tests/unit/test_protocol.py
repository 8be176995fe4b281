"""`SamplingParams` validates itself: an instance with values that no model accepts cannot be created."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.json_types import Json
from octavo.errors import RequestError
from octavo.frontend.intake import RequestLimits, check_params
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams

GRAMMAR = GrammarSpec(GrammarKind.REGEX, "[a-z]+")
FIELDS = [field.name for field in msgspec.structs.fields(SamplingParams)]
BAD = {
    "temperature": (-0.1, 100.5, math.nan, math.inf, "1", True, None),
    "top_p": (0.0, -0.1, 1.1, math.nan, None),
    "top_k": (-1, 1.0, 1 << 40, None, False),
    "min_p": (-0.1, 1.1, math.nan),
    "presence_penalty": (-2.1, 2.1, math.nan),
    "frequency_penalty": (-2.1, 2.1, math.nan),
    "repetition_penalty": (0.0, -1.0, 101.0, math.nan),
    "logit_bias": (None, [(0, 1.0)], {-1: 1.0}, {"1": 1.0}, {1: math.nan}, {1: 100.5}, {True: 1.0}),
    "min_tokens": (-1, 1.5, None),
    "max_tokens": (0, -1, 1.5, "3"),
    "stop": ("abc", None, ("",), (b"x",), {"x"}, (s for s in "x")),
    "include_stop": (1, None, "yes"),
    "stop_token_ids": (None, 3, (-1,), (1.0,), ("1",), (True,)),
    "ignore_eos": (0, None),
    "seed": (1 << 64, -(1 << 63) - 1, 1.0, "7"),
    "n": (0, -1, 1.0, None, True),
    "logprobs": (-1, 1.0, True),
    "prompt_logprobs": (-1, 1.0, True),
    "skip_special_tokens": (1, None),
    "grammar": ("[a-z]+", {"kind": "regex"}),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_invalid_values_are_rejected_at_construction_by_field_name(name: str, value: Json) -> None:
    for make in (
        lambda: SamplingParams(**{name: value}),
        lambda: msgspec.structs.replace(SamplingParams(), **{name: value}),
    ):
        with pytest.raises(RequestError) as caught:
            make()
        assert caught.value.param == name
        assert name.replace("_", " ").split()[0] in str(caught.value)


def test_every_field_has_invalid_samples() -> None:
    assert list(BAD) == FIELDS


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 1}])
def test_a_grammar_excludes_other_end_conditions(fields: dict[str, Json]) -> None:
    with pytest.raises(RequestError, match="the grammar determines where an answer may end"):
        SamplingParams(grammar=GRAMMAR, **fields)


def test_decoding_rejects_invalid_values() -> None:
    good = msgspec.msgpack.encode(SamplingParams(temperature=0.5))
    bad = good.replace(msgspec.msgpack.encode(0.5), msgspec.msgpack.encode(math.nan))
    assert msgspec.msgpack.decode(good, type=SamplingParams) == SamplingParams(temperature=0.5)
    with pytest.raises(RequestError):
        msgspec.msgpack.decode(bad, type=SamplingParams)


NUMBERS = st.one_of(st.floats(allow_nan=True), st.integers(-(1 << 70), 1 << 70), st.booleans(), st.none())


@given(st.dictionaries(st.sampled_from(FIELDS), NUMBERS, max_size=3))
def test_accepted_values_are_finite_and_survive_serialisation(fields: dict[str, Json]) -> None:
    try:
        params = SamplingParams(**fields)
        check_params(params, RequestLimits(vocab_size=10, max_model_len=10))
    except RequestError:
        return
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert again == params
    assert all(math.isfinite(value) for value in fields.values() if isinstance(value, float))
