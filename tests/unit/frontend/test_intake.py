"""The door: what is refused, and what comes out definite."""

import math

import msgspec
import pytest

from data.json_types import Json
from octavo.errors import RequestError
from octavo.frontend.intake import Intake, Limits, PromptTask, check_params
from octavo.protocol import GrammarKind, GrammarSpec, SamplingParams


class Letters:
    """A tokenizer of lower-case letters."""

    eos_ids: tuple[int, ...] = (26, 27)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) - ord("a") for char in text]


LIMITS = Limits(vocab_size=28, max_model_len=32)
INTAKE = Intake(Letters(), LIMITS)  # type: ignore[arg-type]

NUMERIC = [
    field.name
    for field in msgspec.structs.fields(SamplingParams)
    if field.type in (int, float, int | None) and field.name != "n"
]


def refused(**fields: Json) -> str | None:
    """The name of the field for which parameters are refused, when they are made or for this model."""
    with pytest.raises(RequestError) as caught:
        check_params(SamplingParams(**fields), LIMITS)
    return caught.value.param


@pytest.mark.parametrize("name", [*NUMERIC, "n"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, float("1e999"), 1 << 70, "1", True, [1]])
def test_no_number_field_lets_a_bad_number_in(name: str, value: Json) -> None:
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
def test_out_of_range_is_refused_by_name(name: str, value: Json) -> None:
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
def test_what_is_asked_beside_sampling_is_checked_too(name: str, value: Json) -> None:
    with pytest.raises(RequestError):
        INTAKE.prepare("r", PromptTask("abc", SamplingParams()), now=0.0, **{name: value})


def test_a_token_without_a_row_in_the_model_is_refused_in_text_too() -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask("}", SamplingParams()), now=0.0)  # Letters makes id 28 of it
    assert caught.value.param == "prompt"
    small = Intake(Letters(), Limits(vocab_size=27, max_model_len=32))  # type: ignore[arg-type]
    assert small.prepare("r", PromptTask("a", SamplingParams()), now=0.0).messages[0].stop_ids == (26,)


def test_one_choice_scores_the_prompt_for_all() -> None:
    prepared = INTAKE.prepare("r", PromptTask("abc", SamplingParams(n=3, prompt_logprobs=1)), now=0.0)
    assert [message.params.prompt_logprobs for message in prepared.messages] == [1, None, None]


@pytest.mark.parametrize("prompt", [(28,), (-1,), (True,), ("a",), (1.0,)])
def test_bad_prompt_ids_are_refused(prompt: Json) -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask(prompt, SamplingParams()), now=0.0)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [("", 1, "prompt"), ("a" * 32, None, "prompt"), ("a" * 33, 1, "prompt"), ("a" * 20, 13, "max_tokens")],
)
def test_what_cannot_fit_is_refused_with_the_arithmetic(
    prompt: str, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        INTAKE.prepare("r", PromptTask(prompt, SamplingParams(max_tokens=max_tokens)), now=0.0)
    assert caught.value.param == param
    if prompt:
        assert "This model's maximum context length is 32 tokens" in str(caught.value)


def test_the_longest_that_fits_passes() -> None:
    assert INTAKE.prepare("r", PromptTask("a" * 31, SamplingParams()), now=0.0).params.max_tokens == 1
    assert (
        INTAKE.prepare("r", PromptTask("a" * 20, SamplingParams(max_tokens=12)), now=0.0).params.max_tokens
        == 12
    )


def test_a_prepared_request_is_definite() -> None:
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


def test_ignore_eos_leaves_only_the_requests_own_stop_ids() -> None:
    prepared = INTAKE.prepare(
        "r", PromptTask("a", SamplingParams(ignore_eos=True, stop_token_ids=(5,))), now=0.0
    )
    assert prepared.messages[0].stop_ids == (5,)


def test_given_ids_are_the_prompt_and_there_is_no_text() -> None:
    prepared = INTAKE.prepare("r", PromptTask([3, 4], SamplingParams(seed=1)), now=0.0)
    assert (prepared.prompt, prepared.prompt_ids, prepared.params.seed) == (None, (3, 4), 1)


GRAMMAR = GrammarSpec(GrammarKind.REGEX, "[a-z]+")


@pytest.mark.parametrize(
    "fields",
    [{"grammar": "[a-z]+"}, {"grammar": GRAMMAR, "ignore_eos": True}, {"grammar": GRAMMAR, "min_tokens": 1}],
)
def test_a_grammar_that_cannot_work_is_refused(fields: dict[str, Json]) -> None:
    assert refused(**fields) == "grammar"


def test_a_grammar_needs_a_token_that_ends_the_answer() -> None:
    class Endless(Letters):
        eos_ids = (99,)

    endless = Intake(Endless(), LIMITS)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="ends an answer"):
        endless.prepare("r", PromptTask("abc", SamplingParams(grammar=GRAMMAR)), now=0.0)
    (message,) = INTAKE.prepare("r", PromptTask("abc", SamplingParams(grammar=GRAMMAR)), now=0.0).messages
    assert message.params.grammar == GRAMMAR
