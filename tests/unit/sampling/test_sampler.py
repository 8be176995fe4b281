"""A row's outcome is a function of that row: its logits, history, parameters, seed and position."""

import logging
import math
from typing import Unpack

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.sampling_fields import SamplingFields, unchecked_params
from octavo.plan import SlotOpening
from octavo.sampling import RowOutcome, RowState, SampleRow, sample_rows

VOCAB = 503
PROMPT = (5, 9, 9, 2)
STOP_IDS = (7, 11)


class How(SamplingFields, total=False):
    """The parameters that a row is opened with."""

    output: tuple[int, ...]
    choice: int
    stop_ids: tuple[int, ...]


def open_state(
    *,
    output: tuple[int, ...] = (),
    choice: int = 0,
    stop_ids: tuple[int, ...] = STOP_IDS,
    **params: Unpack[SamplingFields],
) -> RowState:
    asked = unchecked_params(**(SamplingFields(seed=1, logprobs=3) | params))
    return RowState(SlotOpening(0, asked, choice, stop_ids, len(PROMPT), PROMPT + output))


def open_row(**how: Unpack[How]) -> SampleRow:
    state = open_state(**how)
    return SampleRow(state, state.num_tokens)


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def draw(logits: torch.Tensor, **how: Unpack[How]) -> int:
    """Sample one token from one row, which must succeed."""
    (outcome,) = sample_rows(logits[None], [open_row(**how)])
    assert outcome.failure is None
    assert outcome.token_id is not None
    return outcome.token_id


params_values = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 1e-5, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 0, 5, 10**6]),
        "top_p": st.sampled_from([1.0, 0.9, 1e-9]),
        "min_p": st.sampled_from([0.0, 0.05, 1.0]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, -0.5]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3]),
        "logit_bias": st.sampled_from([{}, {}, {3: 100.0}, {1: -100.0, 400: 2.5}]),
        "min_tokens": st.sampled_from([0, 3]),
        "seed": st.integers(-(2**63), 2**64),
        "logprobs": st.sampled_from([None, 0, 4]),
        "output": st.lists(st.integers(0, VOCAB - 1), max_size=5).map(tuple),
        "choice": st.integers(0, 3),
    }
)


@settings(max_examples=30, deadline=None)
@given(hows=st.lists(params_values, min_size=1, max_size=9), logits_seed=st.integers(0, 10**6))
def test_batching_does_not_change_a_row(hows: list[How], logits_seed: int) -> None:
    logits = random_logits(len(hows), logits_seed)
    together = sample_rows(logits, [open_row(**how) for how in hows])
    alone = [sample_rows(logits[i : i + 1], [open_row(**how)])[0] for i, how in enumerate(hows)]
    backwards = sample_rows(logits.flip(0), [open_row(**how) for how in reversed(hows)])
    assert all(outcome.failure is None for outcome in together)
    assert together == alone == backwards[::-1]


def test_number_of_threads_does_not_change_results() -> None:
    """The vocabulary is large enough for torch to split a row; a fixture restores the number of threads."""
    logits = torch.randn(2, 100_003, generator=torch.Generator().manual_seed(3))
    outcomes = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        rows = [open_row(temperature=1.3, top_p=0.97), open_row(temperature=0.0)]
        outcomes.append(sample_rows(logits, rows))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@settings(deadline=None)
@given(values=st.lists(st.integers(0, 2), min_size=12, max_size=60))
def test_greedy_breaks_ties_by_smallest_id_with_and_without_edits(values: list[int]) -> None:
    logits = torch.tensor(values, dtype=torch.float32)
    expected = values.index(max(values))
    assert draw(logits, temperature=0.0) == expected
    # A bias of zero uses the path for edited logits and must not change the answer.
    assert draw(logits, temperature=0.0, logit_bias={0: 0.0}) == expected


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -0.5, -1.0, 0.2, 1.1])
    temperature = 0.8
    state = open_state(temperature=temperature, seed=42, logprobs=None)
    count = 20_000
    outcomes = sample_rows(
        logits.expand(count, -1), [SampleRow(state, position) for position in range(4, 4 + count)]
    )
    observed = torch.bincount(torch.tensor([outcome.token_id for outcome in outcomes]), minlength=len(logits))
    expected = torch.softmax(logits.double() / temperature, 0) * count
    statistic = ((observed - expected) ** 2 / expected).sum()
    p_value = torch.special.gammaincc(torch.tensor((len(logits) - 1) / 2, dtype=torch.float64), statistic / 2)
    assert float(p_value) > 1e-4


def sample_sequence(steps: int, state: RowState) -> list[int]:
    """Sample from a model whose logits depend on the position only, so that only noise and history differ."""
    drawn = []
    for _ in range(steps):
        logits = random_logits(1, seed=state.num_tokens) / 3
        (outcome,) = sample_rows(logits, [SampleRow(state, state.num_tokens)])
        assert outcome.token_id is not None
        state.append(outcome.token_id)
        drawn.append(outcome.token_id)
    return drawn


def test_seed_and_choice_decide_the_tokens() -> None:
    first = sample_sequence(20, open_state(seed=5))
    assert sample_sequence(20, open_state(seed=5)) == first
    others = [
        open_state(seed=6),
        open_state(seed=5 + 2**63),
        open_state(seed=5, choice=1),
        open_state(seed=5, choice=2),
    ]
    runs = [first, *(sample_sequence(20, state) for state in others)]
    for index, run in enumerate(runs):
        for other in runs[:index]:
            # Independent draws from 503 tokens coincide at about one in a hundred positions.
            assert sum(a == b for a, b in zip(run, other, strict=True)) <= 3


def test_a_sequence_resumed_at_any_position_continues_identically() -> None:
    how: SamplingFields = {
        "temperature": 0.9,
        "top_p": 0.95,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.7,
        "repetition_penalty": 1.4,
        "min_tokens": 15,
        "seed": 77,
    }
    whole = sample_sequence(30, open_state(**how))
    for cut in (1, 15, 29):
        resumed = open_state(**how, output=tuple(whole[:cut]))
        assert sample_sequence(30 - cut, resumed) == whole[cut:]


def test_each_penalty_uses_the_right_part_of_the_history() -> None:
    # Prompt token 9 leads, then token 20 (generated twice), then 21.
    logits = torch.zeros(VOCAB)
    logits[9], logits[20], logits[21] = 4.0, 3.9, 3.0
    history: How = {"output": (20, 20), "temperature": 0.0}
    assert draw(logits, **history) == 9
    assert draw(logits, **(history | {"presence_penalty": 2.0})) == 9, "presence ignores the prompt"
    assert draw(logits, **(history | {"frequency_penalty": 2.0})) == 9, "frequency ignores the prompt"
    assert draw(logits, **(history | {"repetition_penalty": 2.0})) == 21, "repetition uses prompt and output"
    logits[9] = 0.0
    assert draw(logits, **(history | {"presence_penalty": 0.8})) == 20, "presence counts a token once"
    assert draw(logits, **(history | {"frequency_penalty": 0.8})) == 21, "frequency counts it twice"


def test_stop_tokens_are_banned_until_min_tokens_even_with_a_bias() -> None:
    logits = torch.zeros(VOCAB)
    logits[7] = 50.0
    for temperature in (0.0, 1.0):
        how: SamplingFields = {"temperature": temperature, "min_tokens": 2, "logit_bias": {7: 100.0}}
        assert draw(logits, **how, output=(1,)) != 7
        assert draw(logits, **how, output=(1, 1)) == 7


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0])
def test_bias_of_a_hundred_forces_and_bans(temperature: float) -> None:
    logits = random_logits(1)[0]
    best = int(logits.argmax())
    assert draw(logits, temperature=temperature, logit_bias={400: 100.0}) == 400
    assert draw(logits, temperature=temperature, logit_bias={best: -100.0}) != best


def test_tiny_temperatures_are_greedy_and_never_overflow() -> None:
    logits = random_logits(1)[0] * 1e4
    for temperature in (1e-5, 1e-300, 5e-324):
        assert draw(logits, temperature=temperature, top_p=0.9, min_p=0.1, top_k=40) == int(logits.argmax())


def test_the_logprob_is_of_the_raw_logits() -> None:
    logits = random_logits(1)
    (outcome,) = sample_rows(logits, [open_row(temperature=0.3, top_k=2, logit_bias={17: 100.0})])
    assert outcome.logprob is not None
    assert outcome.logprob.token_id == 17
    assert outcome.logprob.logprob == float(torch.log_softmax(logits[0], 0)[17])
    assert [token for token, _ in outcome.logprob.top] == torch.topk(logits[0], 3).indices.tolist()


BROKEN_LOGITS = {
    "one NaN": lambda row: row.index_fill_(0, torch.tensor([100]), math.nan),
    "all NaN": lambda row: row.fill_(math.nan),
    "one +inf": lambda row: row.index_fill_(0, torch.tensor([100]), math.inf),
    "all -inf": lambda row: row.fill_(-math.inf),
}


def neighbours() -> list[How]:
    return [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 9},
        {"temperature": 0.0, "frequency_penalty": 1.0},
    ]


def assert_only_one_row_fails(logits: torch.Tensor, victim: SampleRow, text: str) -> RowOutcome:
    """Row 1 must fail; the other rows must get the same results as in a call without it."""
    others = [0, 2, 3]
    hows = neighbours()
    undisturbed = sample_rows(logits[others], [open_row(**how) for how in hows])
    rows = [open_row(**hows[0]), victim, open_row(**hows[1]), open_row(**hows[2])]
    outcomes = sample_rows(logits, rows)
    assert [outcomes[i] for i in others] == undisturbed
    assert all(outcome.failure is None for outcome in undisturbed)
    assert outcomes[1].token_id is None
    assert outcomes[1].logprob is None
    assert outcomes[1].failure is not None
    assert text in outcomes[1].failure.message
    return outcomes[1]


@pytest.mark.parametrize("kind", BROKEN_LOGITS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_affect_only_their_own_row(kind: str, temperature: float) -> None:
    logits = random_logits(4)
    BROKEN_LOGITS[kind](logits[1])
    assert_only_one_row_fails(logits, open_row(temperature=temperature), "NaN or infinity")


@pytest.mark.parametrize(
    "how",
    [
        {"min_tokens": 1, "stop_ids": tuple(range(VOCAB))},
        {"repetition_penalty": 1e-45},  # a logit of the prompt overflows to +inf
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_bans_everything_affects_only_its_own_row(how: How, temperature: float) -> None:
    logits = random_logits(4)
    logits[1, PROMPT[0]] = 5.0
    assert_only_one_row_fails(
        logits, open_row(**(how | {"temperature": temperature})), "no token that can be drawn"
    )


def test_an_exception_in_one_row_is_logged_and_its_text_is_not_exposed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    victim = open_row(logit_bias={VOCAB: 1.0})
    with caplog.at_level(logging.ERROR):
        outcome = assert_only_one_row_fails(random_logits(4), victim, "Sampling failed for this request only")
    assert str(VOCAB) in caplog.text
    assert outcome.failure is not None
    assert str(VOCAB) not in outcome.failure.message


def test_penalties_reject_a_history_that_does_not_end_at_the_position() -> None:
    state = open_state(frequency_penalty=1.0)
    for position, failed in ((len(PROMPT), False), (len(PROMPT) + 1, True)):
        (outcome,) = sample_rows(random_logits(1), [SampleRow(state, position)])
        assert (outcome.failure is not None) == failed


def test_opening_a_sampled_row_without_a_seed_fails() -> None:
    with pytest.raises(ValueError, match="seed"):
        open_state(temperature=1.0, seed=None)
    assert open_state(temperature=0.0, seed=None).params.temperature == 0


def test_rows_and_logits_must_match_and_may_be_empty() -> None:
    assert sample_rows(torch.empty(0, VOCAB), []) == []
    with pytest.raises(ValueError, match="2 rows of logits for 1"):
        sample_rows(random_logits(2), [open_row()])
