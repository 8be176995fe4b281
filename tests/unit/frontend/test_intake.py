"""Intake rejects invalid requests and resolves all values of valid ones."""

import math

import msgspec
import pytest

from data.json_types import Json
from octavo.errors import RequestError
from octavo.frontend.intake import Intake, PromptTask, RequestLimits, check_params
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams


class Letters:
    """A tokenizer of lower-case letters."""

    eos_ids: tuple[int, ...] = (26, 27)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) - ord("a") for char in text]


LIMITS = RequestLimits(vocab_size=28, max_model_len=32)
INTAKE = Intake(Letters(), LIMITS)  # type: ignore[arg-type]

NUMERIC = [
    field.name
    for field in msgspec.structs.fields(SamplingParams)
    if field.type in (int, float, int | None) and field.name != "n"
]


def refused(**fields: Json) -> str | None:
    """Return the field for which parameters are rejected, at construction or for this model."""
    with pytest.raises(RequestError) as caught:
        check_params(SamplingParams(**fields), LIMITS)
    return caught.value.param


@pytest.mark.parametrize("name", [*NUMERIC, "n"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, float("1e999"), 1 << 70, "1", True, [1]])
def test_invalid_numbers_are_rejected_in_every_numeric_field(name: str, value: Json) -> None:
    assert refused(**{name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("n", 0),
        ("n", 10**9),
        ("max_tokens", 0),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
        ("stop", ("",)),
        ("stop", ("x" * 257,)),
        ("stop", ("x",) * 17),
        ("stop", "abc"),
        ("stop", None),
        ("stop_token_ids", None),
        ("logit_bias", None),
        ("temperature", 10**400),
        ("stop_token_ids", (28,)),
        ("stop_token_ids", (-1,)),
        ("logit_bias", {28: 1.0}),
        ("logit_bias", {0: math.nan}),
        ("logit_bias", dict.fromkeys(range(1025), 0.0)),
        ("min_tokens", 33),
    ],
)
def test_out_of_range_values_are_rejected_by_field_name(name: str, value: Json) -> None:
    assert refused(**{name: value}) == name


@pytest.mark.parametrize(
    "params", [SamplingParams(min_tokens=3, max_tokens=2), SamplingParams(min_tokens=30)]
)
def test_min_tokens_must_fit(params: SamplingParams) -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask("abc", params), now=0.0)
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "high"),
        ("priority", math.nan),
        ("priority", 1 << 40),
        ("cache_salt", ["a"]),
        ("cache_salt", None),
        ("timeout", "3"),
        ("timeout", 0),
        ("timeout", math.nan),
        ("name", 3),
    ],
)
def test_non_sampling_fields_are_validated(name: str, value: Json) -> None:
    with pytest.raises(RequestError):
        INTAKE.prepare("r", PromptTask("abc", SamplingParams()), now=0.0, **{name: value})


def test_text_with_a_token_outside_the_model_is_rejected() -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask("}", SamplingParams()), now=0.0)  # Letters encodes it as id 28
    assert caught.value.param == "prompt"
    small = Intake(Letters(), RequestLimits(vocab_size=27, max_model_len=32))  # type: ignore[arg-type]
    assert small.prepare("r", PromptTask("a", SamplingParams()), now=0.0).messages[0].stop_ids == (26,)


def test_the_first_choice_scores_the_prompt_for_all() -> None:
    prepared = INTAKE.prepare("r", PromptTask("abc", SamplingParams(n=3, prompt_logprobs=1)), now=0.0)
    assert [message.params.prompt_logprobs for message in prepared.messages] == [1, None, None]


@pytest.mark.parametrize("prompt", [(28,), (-1,), (True,), ("a",), (1.0,)])
def test_invalid_prompt_ids_are_rejected(prompt: Json) -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask(prompt, SamplingParams()), now=0.0)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [("", 1, "prompt"), ("a" * 32, None, "prompt"), ("a" * 33, 1, "prompt"), ("a" * 20, 13, "max_tokens")],
)
def test_prompts_that_do_not_fit_are_rejected_with_the_context_length(
    prompt: str, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask(prompt, SamplingParams(max_tokens=max_tokens)), now=0.0)
    assert caught.value.param == param
    if prompt:
        assert "This model's maximum context length is 32 tokens" in str(caught.value)


def test_the_longest_fitting_request_is_accepted() -> None:
    assert INTAKE.prepare("r", PromptTask("a" * 31, SamplingParams()), now=0.0).params.max_tokens == 1
    assert (
        INTAKE.prepare("r", PromptTask("a" * 20, SamplingParams(max_tokens=12)), now=0.0).params.max_tokens
        == 12
    )


def test_prepared_requests_have_all_values_resolved() -> None:
    prepared = INTAKE.prepare(
        "r",
        PromptTask("abc", SamplingParams(n=3, stop_token_ids=(5, 26))),
        now=7.0,
        timeout=2.0,
        cache_salt="s",
    )
    assert prepared.prompt_ids == (0, 1, 2)
    assert prepared.params.max_tokens == 29
    assert prepared.params.seed is not None
    assert [message.choice for message in prepared.messages] == [0, 1, 2]
    assert {message.stop_ids for message in prepared.messages} == {(26, 27, 5)}
    assert {(m.arrival, m.deadline, m.cache_salt) for m in prepared.messages} == {(7.0, 9.0, "s")}
    again = INTAKE.prepare("r", PromptTask("abc", SamplingParams(n=3)), now=7.0)
    assert again.params.seed != prepared.params.seed  # unseeded requests differ


def test_ignore_eos_keeps_only_the_stop_ids_of_the_request() -> None:
    prepared = INTAKE.prepare(
        "r", PromptTask("a", SamplingParams(ignore_eos=True, stop_token_ids=(5,))), now=0.0
    )
    assert prepared.messages[0].stop_ids == (5,)


def test_prompt_ids_are_used_without_text() -> None:
    prepared = INTAKE.prepare("r", PromptTask([3, 4], SamplingParams(seed=1)), now=0.0)
    assert (prepared.prompt, prepared.prompt_ids, prepared.params.seed) == (None, (3, 4), 1)


GRAMMAR = GrammarSpec(GrammarKind.REGEX, "[a-z]+")


@pytest.mark.parametrize(
    "fields",
    [{"grammar": "[a-z]+"}, {"grammar": GRAMMAR, "ignore_eos": True}, {"grammar": GRAMMAR, "min_tokens": 1}],
)
def test_invalid_grammar_combinations_are_rejected(fields: dict[str, Json]) -> None:
    assert refused(**fields) == "grammar"


def test_a_grammar_needs_an_end_of_sequence_token() -> None:
    class Endless(Letters):
        eos_ids = (99,)

    endless = Intake(Endless(), LIMITS)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="end-of-sequence token"):
        endless.prepare("r", PromptTask("abc", SamplingParams(grammar=GRAMMAR)), now=0.0)
    (message,) = INTAKE.prepare("r", PromptTask("abc", SamplingParams(grammar=GRAMMAR)), now=0.0).messages
    assert message.params.grammar == GRAMMAR
