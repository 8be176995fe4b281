"""A row with drafts has the outcome of the row of a state to which these tokens were appended."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.sampling_fields import unchecked_params
from octavo.kernels.library import find_library
from octavo.kernels.loading import open_pool
from octavo.plan import SlotOpening
from octavo.protocol import SamplingParams
from octavo.sampling import NativeSampler, RowState, Sampler, SampleRow, TorchSampler

VOCAB = 40  # so small that drafts repeat tokens of the prompt, of the answer and each other
PROMPT = (5, 9, 9, 2)
STOP_IDS = (7, 11)

TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8).map(tuple)
PARAMS = st.builds(
    unchecked_params,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {7: 3.0, 1: -4.0}]),
    min_tokens=st.integers(0, 9),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.sampled_from([None, 2]),
)


@pytest.fixture(scope="module", params=["torch", "native"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "torch":
        return TorchSampler()
    path = find_library()
    if path is None:
        pytest.skip("needs the native library")
    return NativeSampler(open_pool(path, "auto", 1))


def opened(params: SamplingParams, answer: Sequence[int]) -> RowState:
    return RowState(SlotOpening(0, params, 1, STOP_IDS, len(PROMPT), (*PROMPT, *answer)))


@settings(max_examples=100, deadline=None)
@given(params=PARAMS, answer=TOKENS, drafts=TOKENS, seed=st.integers(0, 999))
def test_drafts_count_as_appended_tokens(
    sampler: Sampler,
    params: SamplingParams,
    answer: tuple[int, ...],
    drafts: tuple[int, ...],
    seed: int,
) -> None:
    logits = torch.randn(len(drafts) + 1, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, list(STOP_IDS)] += 3  # they are sampled unless they are banned
    state, grown = opened(params, answer), opened(params, answer)
    position = state.num_tokens
    rows = [SampleRow(state, position + n, drafts=drafts[:n]) for n in range(len(drafts) + 1)]
    drafted = sampler.sample_rows(logits, rows)
    expected = []
    for number, token in enumerate((*drafts, None)):
        expected += sampler.sample_rows(logits[number][None], [SampleRow(grown, position + number)])
        if token is not None:
            grown.append(token)
    assert drafted == expected
    assert all(outcome.failure is None for outcome in drafted)
    # Nothing of the drafts is left in the state.
    again = sampler.sample_rows(logits[:1], [SampleRow(state, position)])
    assert again == expected[:1]


@pytest.mark.parametrize("drafts", [(), (1,), (1, 2, 3)])
def test_a_history_of_another_length_fails(sampler: Sampler, drafts: tuple[int, ...]) -> None:
    state = opened(unchecked_params(presence_penalty=0.5, seed=0), (3,))
    row = SampleRow(state, len(PROMPT) + 3, drafts=drafts)  # where two drafts are missing
    (outcome,) = sampler.sample_rows(torch.zeros(1, VOCAB), [row])
    assert outcome.failure is not None
