"""Drafts are accepted as if each token had been sampled in a step of its own."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.grammar.vocabulary import byte_vocabulary
from octavo.ops.torch_ops import TorchOps
from octavo.plan import SequenceSlice, SlotOpening, StepPlan
from octavo.protocol import Failure, FailureCode, SamplingParams
from octavo.runner.model_runner import ModelRunner, verified
from octavo.runner.slot_grammars import SlotGrammars
from octavo.sampling import UNUSABLE_LOGITS, RowOutcome, TorchSampler
from unit.runner.hash_model import BLOCK_SIZE, VOCAB, HashModel

PROMPT = (1, 2, 3, 4, 5)
ANSWER_TOKENS = 12
BLOCKS = tuple(range(8))
BROKEN = RowOutcome(failure=Failure(FailureCode.ENGINE_FAILED, "broken"))


@given(
    st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=6), st.lists(st.integers(0, 1), max_size=5)
)
def test_drafts_are_accepted_until_the_first_that_was_not_sampled(
    sampled: list[int | None], drafts: list[int]
) -> None:
    """`None` is a row that failed. There may be fewer rows than drafts."""
    outcomes = [BROKEN if token is None else RowOutcome(token) for token in sampled[: len(drafts) + 1]]
    expected, number = [outcomes[0]], 0
    while (
        number < len(drafts)
        and outcomes[number].token_id == drafts[number]
        and number + 1 < len(outcomes)
        and outcomes[number + 1].token_id is not None
    ):
        number += 1
        expected.append(outcomes[number])
    assert verified(outcomes, tuple(drafts)) == expected


Guess = Callable[[Sequence[int]], tuple[int, ...]]


def generate(
    model: HashModel, guess: Guess, *, with_prompt: bool = False
) -> tuple[tuple[int, ...], Failure | None, int]:
    """Return the answer, why it ended, and the number of accepted drafts.

    `with_prompt`: in each step, there is a row of another sequence, which samples nothing.
    """
    runner = ModelRunner(
        model.forward,
        lambda hidden: hidden,
        TorchSampler(),
        ops=TorchOps(torch.device("cpu"), torch.float32),
        block_size=BLOCK_SIZE,
        max_running=2,
        grammars=SlotGrammars(byte_vocabulary, VOCAB),
    )
    params = SamplingParams(temperature=0.9, seed=3, presence_penalty=0.8)
    opened: tuple[SlotOpening, ...] = (
        SlotOpening(0, params, 0, (), len(PROMPT), PROMPT),
        SlotOpening(1, params, 0, (), 2, (6, 6)),
    )
    tokens, start, num_accepted = list(PROMPT), 0, 0
    while rest := len(PROMPT) + ANSWER_TOKENS - len(tokens):
        drafts = guess(tokens)[: rest - 1] if start else ()
        known = tuple(tokens[start:])
        pieces = [
            SequenceSlice(0, start, known + drafts, 0, BLOCKS, 1 + len(drafts), num_drafted=len(drafts)),
            SequenceSlice(1, 0, (6,), 0, (len(BLOCKS),), 0),
        ]
        plan = StepPlan(1, (), opened, tuple(pieces if with_prompt else pieces[:1]))
        result, *others = runner.execute(plan).slices
        opened = ()
        assert all(other.failure is None for other in others)
        if result.failure is not None:
            return tuple(tokens[len(PROMPT) :]), result.failure, num_accepted
        assert result.token_ids[: result.num_accepted] == drafts[: result.num_accepted]
        assert len(result.token_ids) == result.num_accepted + 1
        start = len(tokens) + result.num_accepted
        num_accepted += result.num_accepted
        tokens += result.token_ids
    return tuple(tokens[len(PROMPT) :]), None, num_accepted


PLAIN = generate(HashModel(), lambda tokens: ())[0]


def guesses(seed: int) -> Guess:
    """Draft tokens that are right up to some place, which differs from step to step."""

    def guess(tokens: Sequence[int]) -> tuple[int, ...]:
        chance = random.Random(f"{seed} {len(tokens)}")
        rest = (PLAIN * 2)[len(tokens) - len(PROMPT) :][: chance.randrange(6)]
        num_right = chance.randrange(6)
        return rest[:num_right] + tuple([(token + 1) % VOCAB for token in rest[num_right:]])

    return guess


@pytest.mark.parametrize("with_prompt", [False, True])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_wrong_draft_may_fail_without_harm(with_prompt: bool, seed: int) -> None:
    """Every row that follows a wrong token is not finite."""
    text = PROMPT + PLAIN
    model = HashModel(lambda context: len(context) > 2 and context != text[: len(context)])
    answer, failure, _ = generate(model, guesses(seed), with_prompt=with_prompt)
    assert (answer, failure) == (PLAIN, None)


@pytest.mark.parametrize("with_prompt", [False, True])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(len(PROMPT), len(PROMPT) + ANSWER_TOKENS - 1))
def test_a_sequence_whose_right_draft_fails_has_the_tokens_before_it(
    with_prompt: bool, seed: int, length: int
) -> None:
    """The row is computed again, and fails the sequence at the same token as without drafts."""
    text = PROMPT + PLAIN
    model = HashModel(lambda context: context == text[:length])
    answer, failure, _ = generate(model, guesses(seed), with_prompt=with_prompt)
    assert (answer, failure) == (PLAIN[: length - len(PROMPT)], UNUSABLE_LOGITS)


def test_right_drafts_are_accepted() -> None:
    """Otherwise the tests above would show nothing."""
    answer, failure, num_accepted = generate(
        HashModel(), lambda tokens: PLAIN[len(tokens) - len(PROMPT) :][:3]
    )
    assert (answer, failure) == (PLAIN, None)
    assert num_accepted >= ANSWER_TOKENS // 2
