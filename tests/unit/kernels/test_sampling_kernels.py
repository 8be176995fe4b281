"""Native sampling returns the same tokens as `octavo.sampling`, on every ISA and in any batch."""

import ctypes
import math
import random
from collections.abc import Callable, Iterator
from typing import Unpack

import pytest
import torch

from data.sampling_fields import SamplingFields, unchecked_params
from octavo.kernels.library import Isa, KernelLibrary, KernelPool
from octavo.kernels.sampling import Row, RowStatus, Sampled, SampledRow, SampleRowArguments, sample
from octavo.plan import SlotOpening
from octavo.protocol import LOGPROB_FLOOR
from octavo.sampling import RowState, SampleRow, sample_rows, score_rows
from octavo.sampling.native_sampler import kernel_row
from octavo.sampling.random import noise_key
from unit.kernels.instruction_sets import VECTOR_ISAS

OpenPool = Callable[..., KernelPool]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def native(row: SampleRow) -> Row:
    asked = kernel_row(row)
    assert asked is not None
    return asked


def open_row(
    vocab: int,
    *,
    output: tuple[int, ...] = (),
    stop_ids: tuple[int, ...] = (),
    choice: int = 0,
    allowed: torch.Tensor | None = None,
    **params: Unpack[SamplingFields],
) -> SampleRow:
    prompt = (0, vocab // 2, vocab - 1)
    asked = unchecked_params(**(SamplingFields(seed=1) | params))
    state = RowState(SlotOpening(0, asked, choice, stop_ids, len(prompt), prompt + output))
    return SampleRow(state, state.num_tokens, allowed)


def random_mask(dice: random.Random, vocab: int) -> torch.Tensor | None:
    """Allow no, all, nearly all, a few, one or ranges of tokens; also set bits beyond the vocabulary."""
    share = dice.choice([None, None, None, 1.0, 0.98, 0.5, 0.01, 0.0])
    if share is None:
        return None
    bits = torch.rand(32 * -(-vocab // 32), generator=generator_of(dice)) < share
    if dice.random() < 0.3:
        bits[: len(bits) // 2 // 64 * 64] = False
    bits[dice.randrange(vocab)] = True
    weights = torch.tensor([1 << bit for bit in range(32)], dtype=torch.int64)
    return (bits.view(-1, 32) * weights).sum(1).to(torch.int32)


def generator_of(dice: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(dice.randrange(1 << 30))


def random_row(dice: random.Random, vocab: int) -> SampleRow:
    return open_row(
        vocab,
        output=tuple(dice.randrange(vocab) for _ in range(dice.randrange(6))),
        stop_ids=(vocab // 3,),
        choice=dice.randrange(4),
        temperature=dice.choice([0.0, 1e-5, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0, 1e-300, 5e-324, 1e30]),
        top_k=dice.choice([0, 0, 1, 5, 50, 1000, 20000]),
        top_p=dice.choice([1.0, 1.0, 0.9, 0.5, 0.95, 0.999999, 1e-9, 0.0, 1 - 2**-53]),
        min_p=dice.choice([0, 0, 0.05, 0.3, 1.0]),
        presence_penalty=dice.choice([0, 0, 1.5]),
        frequency_penalty=dice.choice([0, 0, -0.5]),
        repetition_penalty=dice.choice([1, 1, 1.3]),
        logit_bias=dice.choice([{}, {}, {0: 100.0}, {vocab - 1: -100.0, vocab // 2: 2.5}]),
        min_tokens=dice.choice([0, 8]),
        seed=dice.randrange(1 << 64),
        logprobs=dice.choice([None, 0, 4, vocab]),
        allowed=random_mask(dice, vocab),
    )


def random_logits(dice: random.Random, num_rows: int, vocab: int) -> torch.Tensor:
    """Flat and peaked logits, with ties, with -inf, and so close to 0 that scaling creates new ties."""
    generator = generator_of(dice)
    logits = torch.randn(num_rows, vocab, generator=generator) * dice.choice([0.01, 1, 3, 10, 40])
    kind = dice.randrange(10)
    if kind in (0, 1):
        logits = (logits * 2).round() / 2
    elif kind == 2:
        logits = logits.bfloat16().float()
    elif kind == 3:
        logits[:, ::3] = -math.inf
    elif kind == 4:
        logits *= 1e-12 * 10 ** torch.randn(num_rows, vocab, generator=generator)
        logits[:, 0] += 5
    return logits


def assert_same(found: list[SampledRow], logits: torch.Tensor, rows: list[SampleRow]) -> None:
    for one, oracle, row in zip(found, sample_rows(logits, rows), rows, strict=True):
        assert (one.status is RowStatus.OK) == (oracle.failure is None)
        if oracle.failure is not None:
            continue
        assert one.token_id == oracle.token_id, row.state.params
        assert (one.logprob is None) == (oracle.logprob is None)
        if oracle.logprob is not None:
            assert one.logprob == pytest.approx(oracle.logprob.logprob, rel=1e-5, abs=1e-5)
            assert [token for token, _ in one.top] == [token for token, _ in oracle.logprob.top]
            assert [value for _, value in one.top] == pytest.approx(
                [value for _, value in oracle.logprob.top], rel=1e-5, abs=1e-5
            )


@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 503, 4099])
def test_every_isa_samples_the_same_tokens_as_the_oracle(
    library: KernelLibrary, open_pool: OpenPool, vocab: int
) -> None:
    dice = random.Random(vocab)
    for _ in range(25 if vocab < 1000 else 8):
        logits = random_logits(dice, 8, vocab)
        rows = [random_row(dice, vocab) for _ in range(8)]
        asked = [native(row) for row in rows]
        outcomes = sample(open_pool(Isa.PORTABLE), logits, asked)
        assert_same(outcomes, logits, rows)
        for isa in library.isas:
            assert sample(open_pool(isa), logits, asked) == outcomes


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99])
def test_top_p_of_a_large_vocabulary(
    library: KernelLibrary, open_pool: OpenPool, spread: float, top_p: float
) -> None:
    generator = torch.Generator().manual_seed(int(spread * 1000))
    logits = torch.randn(8, 50_257, generator=generator) * spread
    rows = [open_row(50_257, temperature=t, top_p=top_p, seed=s) for s in range(4) for t in (0.7, 1.0)]
    assert_same(sample(open_pool(library.best_isa), logits, [native(row) for row in rows]), logits, rows)


@pytest.mark.parametrize("offset", [0.0, 1e-12, -1e-12, 1e-7, -1e-7, 3e-6, -3e-6])
@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_top_p_at_the_exact_edge_of_a_token(open_pool: OpenPool, isa: Isa, offset: float) -> None:
    """Bounds cannot decide whether the fourth token is kept, so all weights must be summed exactly."""
    logits = torch.randn(1, 20_011, generator=torch.Generator().manual_seed(1)) - 10
    logits[0, ::2503] = torch.tensor([4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3])
    weights = (torch.exp(logits[0].double() - 4) * 2.0**42).round()
    edge = float(weights[: 4 * 2503 : 2503].sum() / weights.sum())
    rows = [open_row(20_011, temperature=1.0, top_p=edge + offset, seed=seed) for seed in range(48)]
    many = logits.expand(48, -1).contiguous()
    found = sample(open_pool(isa), many, [native(row) for row in rows])
    assert_same(found, many, rows)
    assert any(one.token_id == 4 * 2503 for one in found) == (offset > 0)


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.9, 0.99])
def test_top_p_with_many_equal_logits(open_pool: OpenPool, top_p: float) -> None:
    logits = torch.zeros(6, 30_000)
    logits[1] = -0.0
    logits[2, ::2] = -1.0
    logits[3, 1::7] = 0.5
    logits[4] = torch.randn(30_000, generator=torch.Generator().manual_seed(2)).round()
    logits[5] = logits[4] * 1e-30
    rows = [open_row(30_000, temperature=0.8, top_p=top_p, seed=seed) for seed in range(6)]
    asked = [native(row) for row in rows]
    for isa in VECTOR_ISAS:
        assert_same(sample(open_pool(isa), logits, asked), logits, rows)


@pytest.mark.parametrize("temperature", [1e-4, 1e-3, 0.2, 1.0, 1e3, 1e4])
def test_top_p_of_peaked_logits_at_any_temperature(
    library: KernelLibrary, open_pool: OpenPool, temperature: float
) -> None:
    """A few tokens have far higher logits than the rest, as in real models."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(6, 30_000, generator=generator) * 2.5
    logits[:, 5::61] += torch.rand(6, 492, generator=generator) * 12
    shares = (0.1, 0.5, 0.9, 0.95, 0.99, 0.9999)
    rows = [open_row(30_000, temperature=temperature, top_p=top_p, seed=3) for top_p in shares]
    asked = [native(row) for row in rows]
    outcomes = sample(open_pool(Isa.PORTABLE), logits, asked)
    assert_same(outcomes, logits, rows)
    for isa in library.isas:
        assert sample(open_pool(isa), logits, asked) == outcomes


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_batch_and_threads_do_not_change_a_row(open_pool: OpenPool, isa: Isa) -> None:
    dice = random.Random(5)
    wide = random_logits(dice, 9, 1100)
    logits = wide[:, 50:1050]  # rows with a stride
    asked = [native(random_row(dice, 1000)) for _ in range(9)]
    before = wide.clone()
    together = sample(open_pool(isa, 2), logits, asked)
    assert sample(open_pool(isa, 1), logits, asked) == together
    for i, row in enumerate(asked):
        assert sample(open_pool(isa, 2), logits[i : i + 1], [row]) == [together[i]]
    assert torch.equal(wide, before)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_draws_follow_the_distribution(open_pool: OpenPool, isa: Isa) -> None:
    """Independent of the oracle: the frequencies in 6,000 draws match the probabilities."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -math.inf]).repeat(6000, 1)
    rows = [Row(temperature=2.0, noise_key=noise_key(seed, 0, 0)) for seed in range(6000)]
    drawn = sample(open_pool(isa), logits, rows)
    shares = torch.bincount(torch.tensor([one.token_id for one in drawn]), minlength=5) / 6000
    torch.testing.assert_close(shares, torch.softmax(logits[0] / 2, dim=0), rtol=0, atol=0.025)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_scores_of_given_tokens_match_the_oracle(open_pool: OpenPool, isa: Isa) -> None:
    logits = torch.randn(4, 777, generator=torch.Generator().manual_seed(3)) * 4
    logits[:, 5] = -math.inf
    given = [0, 5, 776, 300]
    rows = [Row(temperature=1.0, given=token, logprobs=3) for token in given]
    found = sample(open_pool(isa), logits, rows)
    for one, oracle in zip(found, score_rows(logits, given, 3), strict=True):
        assert one.token_id == oracle.token_id
        assert one.logprob == pytest.approx(oracle.logprob, rel=1e-5, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in oracle.top]
    assert found[1].logprob == LOGPROB_FLOOR


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_errors_affect_only_their_own_row(open_pool: OpenPool, isa: Isa) -> None:
    vocab = 130
    logits = torch.randn(8, vocab, generator=torch.Generator().manual_seed(1))
    logits[0, 70] = math.nan
    logits[1, 129] = math.inf
    logits[2] = -math.inf
    fine = Row(temperature=1.0, logprobs=2)
    everything = torch.arange(vocab)
    rows = [
        fine,
        fine,
        fine,
        Row(temperature=1.0, banned_ids=everything, logprobs=2),
        Row(temperature=0.0, bias_ids=torch.tensor([7]), bias_values=torch.tensor([math.nan])),
        Row(temperature=1.0, banned_ids=torch.tensor([vocab])),
        Row(temperature=1.0, bias_ids=torch.tensor([-1]), bias_values=torch.ones(1)),
        fine,
    ]
    outcomes = sample(open_pool(isa), logits, rows)
    assert [one.status for one in outcomes] == [
        *[RowStatus.UNUSABLE_LOGITS] * 3,
        *[RowStatus.NO_TOKEN_LEFT] * 2,
        *[RowStatus.BAD_ID] * 2,
        RowStatus.OK,
    ]
    assert all(one.token_id == -1 and one.logprob is None and not one.top for one in outcomes[:-1])
    assert outcomes[-1] == sample(open_pool(isa), logits[7:], [fine])[0]


def test_ties_are_ordered_by_token_id(library: KernelLibrary, open_pool: OpenPool) -> None:
    logits = torch.zeros(1, 200)
    logits[0, [150, 90]] = 1.0
    logits[0, 3] = -0.0
    (one,) = sample(open_pool(library.best_isa), logits, [Row(temperature=0.0, logprobs=5)])
    assert one.token_id == 90
    assert [token for token, _ in one.top] == [90, 150, 0, 1, 2]


def test_invalid_arguments_are_rejected(open_pool: OpenPool) -> None:
    pool, logits, fine = open_pool(Isa.PORTABLE), torch.randn(1, 100), Row(temperature=1.0)
    for wrong_logits in (logits.double(), logits[0], logits.repeat(2, 1)):
        with pytest.raises(ValueError, match="logits"):
            sample(pool, wrong_logits, [fine])
    for wrong_row in (
        Row(temperature=-1.0),
        Row(temperature=math.nan),
        Row(temperature=math.inf),
        Row(temperature=1.0, top_p=math.nan),
        Row(temperature=1.0, min_p=1.5),
        Row(temperature=1.0, top_k=-1),
        Row(temperature=1.0, logprobs=-2),
        Row(temperature=1.0, given=-2),
        Row(temperature=1.0, seen_ids=torch.tensor([1])),
        Row(temperature=1.0, banned_ids=torch.tensor([1], dtype=torch.int32)),
    ):
        with pytest.raises(ValueError, match=r"native kernel|have a count|expected a contiguous list"):
            sample(pool, logits, [wrong_row])
    assert sample(pool, logits[:0], []) == []


def test_the_c_interface_rejects_invalid_arguments_and_writes_nothing(
    library: KernelLibrary, open_pool: OpenPool
) -> None:
    pool, logits = open_pool(Isa.PORTABLE), torch.randn(1, 100)
    rows = (SampleRowArguments * 1)(SampleRowArguments(temperature=1.0, top_p=1.0, given=-1, num_top=2))
    sampled = (Sampled * 1)(Sampled(77, 77.0, 77))
    top_ids, top_logprobs = torch.full((2,), 77), torch.full((2,), 77.0)
    good = [pool.handle, logits.data_ptr(), 100, 1, 100, rows, sampled]
    good += [top_ids.data_ptr(), top_logprobs.data_ptr(), 2, LOGPROB_FLOOR]
    changes: list[tuple[int, float | None]] = [(i, None) for i in (0, 1, 5, 6, 7, 8)]
    changes += [(2, 99), (2, 1 << 50), (3, 0), (3, -1), (4, 0), (4, 1 << 21), (9, 1), (9, -1)]
    changes += [(10, -math.inf), (10, math.nan)]
    for place, value in changes:
        arguments = [*good]
        arguments[place] = value
        assert library.functions.ov_sample(*arguments) != 0, (place, value)
    fields = (("num_seen", 1), ("num_biased", 1), ("num_banned", 1), ("num_banned", -1), ("num_top", 101))
    for field, value in fields:
        broken = (SampleRowArguments * 1)(SampleRowArguments.from_buffer_copy(rows[0]))
        setattr(broken[0], field, value)
        assert library.functions.ov_sample(*good[:5], broken, *good[6:]) != 0, (field, value)
    assert (sampled[0].token_id, sampled[0].error) == (77, 77)
    assert (top_ids == 77).all()
    assert (top_logprobs == 77.0).all()
    assert library.functions.ov_sample(*good) == 0
    assert sampled[0].error == RowStatus.OK
    assert ctypes.sizeof(Sampled) == 16


def mask_of(ids: list[int], vocab: int) -> torch.Tensor:
    words = [0] * -(-vocab // 32)
    for token_id in ids:
        words[token_id // 32] |= 1 << token_id % 32
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_a_mask_affects_only_the_tokens_it_forbids_in_its_own_row(open_pool: OpenPool, isa: Isa) -> None:
    """A grammar allows nearly all, a few or one token of a large vocabulary; every second row has no mask."""
    vocab = 50_257
    logits = torch.randn(12, vocab, generator=torch.Generator().manual_seed(4)) * 3
    few = [5, 63, 64, 30_000, vocab - 1]
    masks = [
        mask_of(few, vocab),
        mask_of([777], vocab),
        ~mask_of([int(row.argmax()) for row in logits], vocab),
        mask_of(list(range(vocab)), vocab),
    ]
    rows = [
        open_row(
            vocab,
            temperature=[0.0, 1.0, 0.8][number % 3],
            top_p=[1.0, 0.9][number % 2],
            top_k=[0, 3][number % 4 == 0],
            seed=number,
            logprobs=2,
            allowed=masks[number // 2 % 4] if number % 2 else None,
        )
        for number in range(12)
    ]
    found = sample(open_pool(isa), logits, [native(row) for row in rows])
    assert_same(found, logits, rows)
    assert found[1].token_id in few
    assert found[3].token_id == 777
    assert found[5].token_id != int(logits[5].argmax())
    free = [number for number in range(12) if number % 2 == 0]
    assert sample(open_pool(isa), logits[free], [native(rows[number]) for number in free]) == [
        found[n] for n in free
    ]


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_no_token_is_left_if_all_allowed_logits_are_minus_infinity(open_pool: OpenPool, isa: Isa) -> None:
    logits = torch.zeros(1, 100)
    logits[0, 7] = -math.inf
    rows = [open_row(100, allowed=mask_of([7], 100))]
    (outcome,) = sample(open_pool(isa), logits, [native(row) for row in rows])
    assert outcome.status is RowStatus.NO_TOKEN_LEFT
    assert_same([outcome], logits, rows)


def test_a_mask_for_another_vocabulary_is_rejected(open_pool: OpenPool) -> None:
    row = native(open_row(100, allowed=mask_of([7], 64)))
    with pytest.raises(Exception, match="size"):
        sample(open_pool(Isa.PORTABLE), torch.zeros(1, 100), [row])
