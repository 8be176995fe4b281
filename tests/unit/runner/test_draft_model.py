"""The KV of the draft model is right in spite of rejected drafts, preemptions, shared and replaced blocks.

The draft model computes the same logits as the large one, so each of its drafts is accepted, except where its
logits are spoiled on purpose. Wrong or missing KV would give other drafts.
"""

import random
from collections import deque
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.cache import KVManager
from octavo.drafting import Proposer
from octavo.grammar.vocabulary import byte_vocabulary
from octavo.ops.torch_ops import TorchOps
from octavo.plan import DraftPass, SequenceSlice, StepPlan, StepResult
from octavo.protocol import GenerateRequest, SamplingParams
from octavo.runner import draft_model
from octavo.runner.draft_model import SILENT_TOKENS, DraftModel
from octavo.runner.model_runner import ModelRunner
from octavo.runner.slot_grammars import SlotGrammars
from octavo.sampling import TorchSampler
from octavo.schedule import DraftPolicy, Scheduler, SchedulerConfig
from unit.runner.hash_model import BLOCK_SIZE, VOCAB, HashModel

MAX_RUNNING = 3
CONTEXT = 64
SPOILED = 0.15  # fraction of contexts in which the draft model is wrong


def is_spoiled(context: tuple[int, ...]) -> bool:
    return random.Random(f"spoiled {context}").random() < SPOILED


class SpoiledModel(HashModel):
    """Has fewer logits than the large model, and in some contexts the opposite ones."""

    def _row(self, context: tuple[int, ...]) -> list[float]:
        row = super()._row(context)
        return [-logit for logit in row] if is_spoiled(context) else row


class Occasional:
    """A method of drafting that is wrong now and then, and proposes nothing otherwise."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def open(self, salt: str) -> Proposer:
        return self

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        pass

    def learn(self) -> None:
        pass

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        chance = random.Random(f"{self._seed} {token_ids}")
        return [chance.randrange(VOCAB) for _ in range(limit)] if chance.random() < 0.2 else ()


class Engine:
    """Scheduler and runner, without threads or clocks."""

    def __init__(
        self, seed: int, *, num_blocks: int, drafts: bool, fails: bool = False, num_embeddings: int = VOCAB
    ) -> None:
        self.fails, self.may_err = fails, num_embeddings < VOCAB
        ops = TorchOps(torch.device("cpu"), torch.float32)
        self.kv = KVManager(num_blocks, BLOCK_SIZE, prefix_caching=True)
        self.passes: list[DraftPass] = []
        self.small: HashModel = SpoiledModel()
        large = HashModel()
        self.draft_model = DraftModel(
            lambda batch: self.small.forward(batch),  # noqa: PLW0108 - a test replaces `small`
            lambda hidden: hidden,
            TorchSampler(),
            ops=ops,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_running=MAX_RUNNING,
            vocab_size=VOCAB,
            num_embeddings=num_embeddings,
        )
        self._runner = ModelRunner(
            large.forward,
            lambda hidden: hidden,
            TorchSampler(),
            ops=ops,
            block_size=BLOCK_SIZE,
            max_running=MAX_RUNNING,
            grammars=SlotGrammars(byte_vocabulary, VOCAB),
            draft_model=self.draft_model if drafts else None,
        )
        config = SchedulerConfig(
            MAX_RUNNING,
            CONTEXT,
            max_step_tokens=24,
            max_draft_tokens=6,
            draft_context=CONTEXT if drafts else 0,
            draft_policy=DraftPolicy.ALL,
        )
        self.scheduler = Scheduler(config, self.kv, Occasional(seed) if drafts else None)
        self.answers: dict[str, tuple[int, ...]] = {}
        self.num_accepted = self.num_rejected = 0

    def run(self, requests: Sequence[GenerateRequest]) -> dict[str, tuple[int, ...]]:
        waiting = list(requests)
        while waiting or self.scheduler.has_unfinished:
            if waiting:
                self.scheduler.add(waiting.pop(0), 0.0)
            plan = self.scheduler.schedule(0.0)
            result = self._runner.execute(plan)
            self._check(plan, result)
            self.scheduler.apply(plan, result, 0.0)
            for output in self.scheduler.drain():
                assert output.failure is None
                self.answers[output.request_id] = self.answers.get(output.request_id, ()) + output.token_ids
            self.scheduler.check()
        assert self.fails == self.draft_model.has_failed
        return self.answers

    def _check(self, plan: StepPlan, result: StepResult) -> None:
        self.passes += result.draft_passes
        by_slot = {sequence.slot: sequence.token_ids for sequence in self.scheduler.running()}
        for piece, outcome in zip(plan.slices, result.slices, strict=True):
            assert outcome.num_drafted <= max(piece.num_granted, piece.num_drafted)
            if not piece.num_granted:
                continue
            self.num_accepted += outcome.num_accepted
            if outcome.num_accepted < outcome.num_drafted:
                self.num_rejected += 1
                known = (*by_slot[piece.slot], *outcome.token_ids[:-1])
                assert self.may_err or is_spoiled(known), (
                    "a draft was wrong, but the draft model was not spoiled there"
                )


def requests(chance: random.Random) -> list[GenerateRequest]:
    """Return requests of which some share the beginning, and some are equal."""
    shared = [chance.randrange(VOCAB) for _ in range(24)]
    made = []
    for number in range(chance.randint(3, 8)):
        prompt = shared[: chance.randint(1, 24)] + [chance.randrange(VOCAB)] * chance.randint(0, 3)
        params = SamplingParams(
            temperature=chance.choice((0.0, 0.8)),
            seed=chance.randrange(2),
            max_tokens=chance.randint(1, 36),
            presence_penalty=chance.choice((0.0, 0.7)),
        )
        stop_ids = tuple(chance.sample(range(VOCAB), chance.randint(0, 1)))
        made.append(
            GenerateRequest(
                request_id=str(number), prompt_ids=tuple(prompt), params=params, stop_ids=stop_ids
            )
        )
    return made


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "MAX_LAG", 3)
    monkeypatch.setattr(draft_model, "CATCH_UP_TOKENS", 9)


def run(seed: int, *, fails: bool = False) -> Engine:
    """Check that a workload has the same answers with and without a draft model. Return the former engine."""
    chance = random.Random(seed)
    num_blocks = chance.choice((16, 17, 40))  # the longest sequence takes 16 blocks: others are preempted
    workload = requests(chance)
    engine = Engine(seed, num_blocks=num_blocks, drafts=True, fails=fails)
    assert engine.run(workload) == Engine(seed, num_blocks=num_blocks, drafts=False).run(workload)
    return engine


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_drafts_are_wrong_only_where_the_draft_model_is(seed: int) -> None:
    run(seed)


def totals() -> tuple[int, int, int, int]:
    engines = [run(seed) for seed in range(20)]
    return (
        sum(engine.num_accepted for engine in engines),
        sum(engine.num_rejected for engine in engines),
        sum(engine.scheduler.stats().preemptions for engine in engines),
        sum(one.catches_up for engine in engines for one in engine.passes),
    )


def test_the_workload_has_what_could_go_wrong() -> None:
    num_accepted, num_rejected, num_preemptions, num_catching_up = totals()
    assert num_accepted > 100
    assert min(num_rejected, num_preemptions, num_catching_up) > 10


def ahead_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was computed for rejected drafts."""
    settle, follow = DraftModel._settle, DraftModel._follow

    def without_loss(method):  # type: ignore[no-untyped-def]
        def broken(self: DraftModel, piece: SequenceSlice, *others: object) -> None:
            held = self._tokens[piece.slot]
            assert held is not None
            computed = held.num_computed
            method(self, piece, *others)
            held.num_computed = max(held.num_computed, computed)

        return broken

    monkeypatch.setattr(DraftModel, "_follow", without_loss(follow))
    monkeypatch.setattr(DraftModel, "_settle", without_loss(settle))


def trusting_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every shared block for one that the draft model has computed."""
    monkeypatch.setattr(DraftModel, "_num_filled", lambda self, table, first, end: end)


def never_unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not notice that a block has another owner."""
    monkeypatch.setattr(DraftModel, "_mark_unfilled", lambda self, piece, table: None)


@pytest.mark.parametrize(
    ("plant", "finding"),
    [
        (ahead_of_the_target, "has_failed"),
        (trusting_all_blocks, "not spoiled"),
        (never_unfilled, "not spoiled"),
    ],
)
def test_a_planted_bug_is_found(plant, finding: str, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=finding):
        deque(map(run, range(100)), maxlen=0)


@pytest.mark.parametrize("method", ["_follow", "_draft", "_settle"])
@pytest.mark.parametrize("seed", range(10))
def test_an_exception_ends_only_the_drafting(method: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: DraftModel, *args: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(DraftModel, method, fail)
    assert run(seed, fails=True).num_accepted == 0


def test_a_prompt_that_was_caught_up_in_parts_is_not_computed_again() -> None:
    prompt = tuple(chance % VOCAB for chance in range(40))
    engine = Engine(0, num_blocks=40, drafts=True)
    first_passes = []
    for number in range(2):
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=20)
        engine.passes.clear()
        engine.run([GenerateRequest(request_id=str(number), prompt_ids=prompt, params=params)])
        first_passes.append(engine.passes[:3])
    assert all(one.catches_up for one in first_passes[0])
    assert not any(one.catches_up for one in first_passes[1])


class EndingModel(HashModel):
    """Expects the end of the answer in every context."""

    def _row(self, context: tuple[int, ...]) -> list[float]:
        return [9.0] + [0.0] * (VOCAB - 1)


def test_a_model_that_expects_the_end_in_vain_is_silent_for_some_tokens() -> None:
    engine = Engine(0, num_blocks=40, drafts=True)
    engine.small = EndingModel()
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=2 * SILENT_TOKENS, min_tokens=0)
    (answer,) = engine.run(
        [GenerateRequest(request_id="a", prompt_ids=(3, 4), params=params, stop_ids=(0,))]
    ).values()
    assert len(answer) == 2 * SILENT_TOKENS
    assert 1 <= sum(not one.catches_up for one in engine.passes) <= 2


def test_tokens_that_the_draft_model_does_not_know_are_replaced() -> None:
    prompt = tuple(range(VOCAB))
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=20)
    request = GenerateRequest(request_id="a", prompt_ids=prompt, params=params)
    engine = Engine(0, num_blocks=40, drafts=True, num_embeddings=VOCAB - 4)
    assert engine.run([request]) == Engine(0, num_blocks=40, drafts=False).run([request])
    assert max(engine.small.kv.values()) < VOCAB - 4
