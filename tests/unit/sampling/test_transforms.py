"""Filters and penalties compared with transformers' logits processors, and at the limits of their ranges."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from data.sampling_fields import unchecked_params
from octavo.protocol import SamplingParams
from octavo.sampling import transforms

VOCAB = 1500


def random_row(seed: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale
    assert len(row.unique()) == vocab, "the oracle breaks ties by sort order, so its rows must have none"
    return row


def survivors(scores: torch.Tensor) -> set[int]:
    return set(torch.nonzero(scores > -math.inf).squeeze(1).tolist())


def oracle(
    processor: hf.LogitsProcessor, row: torch.Tensor, input_ids: torch.Tensor | None = None
) -> torch.Tensor:
    ids = torch.zeros(1, 0, dtype=torch.long) if input_ids is None else input_ids[None]
    scores: torch.Tensor = processor(ids, row[None].clone())
    return scores[0]


def assert_same_filter(ours: torch.Tensor, theirs: torch.Tensor, row: torch.Tensor) -> None:
    assert survivors(ours) == survivors(theirs)
    kept = ours > -math.inf
    assert torch.equal(ours[kept], row[kept].to(ours))


seeds = pytest.mark.parametrize("seed", range(5))


@seeds
@pytest.mark.parametrize("top_k", [1, 7, 300, 700, VOCAB, VOCAB + 9])
def test_top_k_equals_transformers(seed: int, top_k: int) -> None:
    row = random_row(seed)
    assert_same_filter(transforms.keep_top_k(row, top_k), oracle(hf.TopKLogitsWarper(top_k), row), row)


@seeds
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("scale", [0.3, 3.0])  # a flat row needs more than the head that is searched first
def test_top_p_equals_transformers(seed: int, top_p: float, scale: float) -> None:
    row = random_row(seed, scale=scale)
    ours = transforms.keep_top_p(row.double(), top_p)
    assert_same_filter(ours, oracle(hf.TopPLogitsWarper(top_p), row.double()), row)


@seeds
@pytest.mark.parametrize("min_p", [1e-6, 0.01, 0.3, 0.999])
def test_min_p_equals_transformers(seed: int, min_p: float) -> None:
    row = random_row(seed)
    assert_same_filter(
        transforms.keep_min_p(row.double(), min_p), oracle(hf.MinPLogitsWarper(min_p), row), row
    )


@seeds
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 1.9])
def test_temperature_equals_transformers_up_to_a_shift(seed: int, temperature: float) -> None:
    row = random_row(seed)
    theirs = oracle(hf.TemperatureLogitsWarper(temperature), row.double())
    torch.testing.assert_close(
        transforms.apply_temperature(row, temperature), theirs - theirs.max(), rtol=1e-12, atol=1e-10
    )


@seeds
@pytest.mark.parametrize("penalty", [0.5, 1.1, 2.0])
def test_repetition_penalty_equals_transformers_bitwise(seed: int, penalty: float) -> None:
    row = random_row(seed)
    history = torch.randint(VOCAB, (400,), generator=torch.Generator().manual_seed(seed))
    theirs = oracle(hf.RepetitionPenaltyLogitsProcessor(penalty), row, history)
    assert torch.equal(transforms.penalize_repetition(row, history.unique(), penalty), theirs)


@seeds
def test_ban_equals_transformers_min_new_tokens(seed: int) -> None:
    row = random_row(seed)
    stop_ids = [3, 700, VOCAB - 1]
    processor = hf.MinNewTokensLengthLogitsProcessor(4, 5, eos_token_id=stop_ids, device="cpu")
    theirs = oracle(processor, row, torch.zeros(8, dtype=torch.long))
    assert torch.equal(transforms.ban(row, torch.tensor(stop_ids)), theirs)


@seeds
def test_bias_equals_transformers(seed: int) -> None:
    row = random_row(seed)
    bias = {5: -100.0, 6: 100.0, VOCAB - 1: 0.25}
    theirs = oracle(hf.SequenceBiasLogitsProcessor([[[k], v] for k, v in bias.items()]), row)
    ours = transforms.add_bias(row, torch.tensor(list(bias)), torch.tensor(list(bias.values())))
    assert torch.equal(ours, theirs)


@seeds
def test_presence_and_frequency_follow_the_formula_of_the_api(seed: int) -> None:
    row = random_row(seed)
    counts = Counter(torch.randint(40, (100,), generator=torch.Generator().manual_seed(seed)).tolist())
    counts[41] = 0  # in the prompt only
    ours = transforms.penalize_presence_and_frequency(
        row, torch.tensor(list(counts)), torch.tensor(list(counts.values())), presence=0.5, frequency=0.25
    )
    expected = row.double()
    for token, count in counts.items():
        expected[token] -= count * 0.25 + (count > 0) * 0.5
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-6)


@seeds
def test_all_filters_in_order_equal_the_chain_of_transformers(seed: int) -> None:
    row = random_row(seed)
    params = SamplingParams(temperature=1.6, top_k=200, top_p=0.95, min_p=0.02)
    theirs = row.double()
    for processor in (
        hf.TemperatureLogitsWarper(1.6),
        hf.TopKLogitsWarper(200),
        hf.TopPLogitsWarper(0.95),
        hf.MinPLogitsWarper(0.02),
    ):
        theirs = oracle(processor, theirs)
    assert survivors(transforms.distribution(row, params)) == survivors(theirs)


def test_edits_are_applied_in_the_documented_order() -> None:
    """Token 0 is repeated, biased and a stop token; token 1 is repeated and biased; token 2 only repeated."""
    logits = torch.tensor([4.0, 1.0, 3.0, 0.0])
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.5)
    edited = transforms.edit(
        logits,
        params,
        seen_ids=torch.tensor([0, 1, 2]),
        seen_counts=torch.tensor([1.0, 1.0, 1.0]),
        bias_ids=torch.tensor([0, 1]),
        bias_values=torch.tensor([100.0, 10.0]),
        banned_ids=torch.tensor([0]),
    )
    # Token 1: 1 / 2 - 1.5 + 10, where bias first would give (1 + 10) / 2 - 1.5.
    # Token 2: 3 / 2 - 1.5, where presence first would give (3 - 1.5) / 2.
    assert edited.tolist() == [-math.inf, 9.0, 0.0, 0.0]


def test_transforms_do_not_modify_their_input() -> None:
    row = random_row(1)
    before = row.clone()
    transforms.edit(
        row,
        SamplingParams(repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=1.0),
        seen_ids=torch.tensor([1, 2]),
        seen_counts=torch.tensor([3.0, 0.0]),
        bias_ids=torch.tensor([4]),
        bias_values=torch.tensor([2.0]),
        banned_ids=torch.tensor([5]),
    )
    transforms.distribution(row, SamplingParams(temperature=0.5, top_k=5, top_p=0.5, min_p=0.5))
    assert torch.equal(row, before)


@pytest.mark.parametrize("bad", [-1, VOCAB])
def test_an_id_outside_the_vocabulary_is_rejected(bad: int) -> None:
    for edit in (
        transforms.ban,
        lambda row, ids: transforms.add_bias(row, ids, torch.ones(1)),
        lambda row, ids: transforms.penalize_repetition(row, ids, 2.0),
        lambda row, ids: transforms.penalize_presence_and_frequency(row, ids, torch.ones(1), 1.0, 0.0),
    ):
        with pytest.raises(IndexError):
            edit(random_row(0), torch.tensor([bad]))


# Few distinct values, so that ties at the cut are common.
tied_rows = st.lists(st.integers(-3, 3), min_size=1, max_size=30).map(
    lambda v: torch.tensor(v, dtype=torch.float32)
)


@settings(max_examples=100, deadline=None)
@given(
    row=tied_rows,
    params=st.builds(
        unchecked_params,
        temperature=st.sampled_from([5e-324, 1e-5, 0.5, 1.0, 2.0, 1e9]),
        top_k=st.integers(0, 40),
        top_p=st.sampled_from([0.0, 1e-300, 1e-9, 0.3, 0.5, 0.999999, 1.0]),
        min_p=st.sampled_from([0.0, 1e-300, 0.2, 1.0]),
    ),
)
def test_filters_keep_the_best_and_cut_by_value_only(row: torch.Tensor, params: SamplingParams) -> None:
    scores = transforms.distribution(row, params)
    assert not scores.isnan().any()
    assert float(scores.max()) == 0.0
    kept = scores > -math.inf
    lowest_kept = row[kept].min()
    # With a tiny temperature, other tokens underflow to -inf; otherwise a threshold decides.
    assert torch.equal(kept, row >= lowest_kept)


@settings(deadline=None)
@given(row=tied_rows)
def test_disabled_filters_change_nothing(row: torch.Tensor) -> None:
    for scores in (
        transforms.keep_top_k(row, 0),
        transforms.keep_top_k(row, len(row)),
        transforms.keep_top_k(row, 10**6),
        transforms.keep_top_p(row, 1.0),
        transforms.keep_min_p(row, 0.0),
    ):
        assert torch.equal(scores, row)


@settings(deadline=None)
@given(row=tied_rows)
def test_the_strictest_filters_keep_exactly_the_best_value(row: torch.Tensor) -> None:
    best = survivors(torch.where(row == row.max(), 0.0, -math.inf))
    for scores in (
        transforms.keep_top_k(row, 1),
        transforms.keep_top_p(row.double(), 1e-300),
        transforms.keep_min_p(row.double(), 1.0),
    ):
        assert survivors(scores) == best


@pytest.mark.parametrize("head", transforms.TOP_P_HEADS)
def test_top_p_is_continuous_across_head_widths(head: int) -> None:
    """Heads are only an optimisation: around their widths, the kept set grows one token at a time."""
    row = torch.arange(6000, 0, -1, dtype=torch.float64) * 1e-5
    share = torch.softmax(row, 0).cumsum(0).tolist()
    for count in range(head - 3, head + 4):
        between = (share[count - 2] + share[count - 1]) / 2
        assert len(survivors(transforms.keep_top_p(row, between))) == count


def test_all_but_one_token_banned_leaves_that_one() -> None:
    row = transforms.ban(random_row(2), torch.tensor([i for i in range(VOCAB) if i != 77]))
    for params in (
        SamplingParams(),
        SamplingParams(top_k=50, top_p=0.9, min_p=0.1),
        SamplingParams(temperature=1e-5, top_p=1e-9),
    ):
        assert survivors(transforms.distribution(row, params)) == {77}
