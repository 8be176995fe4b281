"""Verifying drafts wrongly, in any of these manners, makes the suite fail.

Right drafts hide most such bugs, and wrong ones the others: `KnownAnswers` proposes both.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from octavo.kernels.sampling import Row
from octavo.plan import StepPlan, StepResult
from octavo.runner import model_runner
from octavo.runner.slot_grammars import AllowedTokens, SlotGrammars
from octavo.sampling import RowOutcome, SampleRow, native_sampler
from octavo.sampling.random import noise_key
from octavo.sampling.tally import TokenTally
from octavo.schedule import Scheduler
from purity import ways
from purity.test_purity import available_isas
from purity.ways import PLAIN, Model, Request, Run, Way, loaded, losing_steps, mismatch, together
from purity.workloads import params, tiny_requests

pytestmark = pytest.mark.usefixtures("untraced")  # other tests cover this code

TOGETHER = Way(together, chunk=0, threads=1, caching=False, drafts=True)
LOSING = Way(losing_steps, chunk=0, threads=1, slots=4, drafts=True)


def one_draft_too_many_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(outcomes: list[RowOutcome], draft_ids: tuple[int, ...]) -> list[RowOutcome]:
        return outcomes[: len(verified(outcomes, draft_ids)) + 1]

    verified = model_runner.verified
    monkeypatch.setattr(model_runner, "verified", broken)


def a_draft_is_accepted_after_a_rejected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(outcomes: list[RowOutcome], draft_ids: tuple[int, ...]) -> list[RowOutcome]:
        agreed = [
            after
            for row, draft, after in zip(outcomes, draft_ids, outcomes[1:], strict=False)
            if row.token_id == draft
        ]
        return [outcomes[0], *agreed]

    monkeypatch.setattr(model_runner, "verified", broken)


def the_noise_is_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_row = native_sampler.kernel_row

    def broken(row: SampleRow) -> Row | None:
        made, first = kernel_row(row), row.position - len(row.drafts)
        key = noise_key(row.state.seed, row.state.choice, first)
        return None if made is None else dataclasses.replace(made, noise_key=key)

    monkeypatch.setattr(native_sampler, "kernel_row", broken)


def penalties_do_not_count_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TokenTally, "ahead", lambda self, drafts: (self.ids, self.counts))


def penalties_keep_rejected_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = TokenTally.ahead

    def broken(self: TokenTally, drafts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        for token in drafts[-1:]:
            self.add(token)
        return ahead(self, ())

    monkeypatch.setattr(TokenTally, "ahead", broken)


def the_mask_is_of_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed_ahead = SlotGrammars.allowed_ahead

    def broken(self: SlotGrammars, slot: int, num_drafted: int, until: float) -> tuple[AllowedTokens, ...]:
        ahead = allowed_ahead(self, slot, num_drafted, until)
        return (*ahead[:1], *ahead[:-1])

    monkeypatch.setattr(SlotGrammars, "allowed_ahead", broken)


def the_grammar_ignores_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SlotGrammars, "allowed_ahead", lambda self, slot, num_drafted, until: (AllowedTokens(),) * num_drafted
    )


def a_block_with_a_rejected_draft_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Scheduler.apply

    def broken(self: Scheduler, plan: StepPlan, result: StepResult, now: float) -> None:
        in_flight = self._in_flight
        apply(self, plan, result, now)
        for sequence, piece in zip(in_flight, plan.slices, strict=True):
            if sequence.block_table is not None and piece.num_drafted:
                end = min(piece.start + len(piece.token_ids), len(sequence.token_ids))
                self.kv.commit(sequence.block_table, sequence.token_ids, end)

    monkeypatch.setattr(Scheduler, "apply", broken)


BUGS: Sequence[tuple[Callable[[pytest.MonkeyPatch], None], Way]] = [
    (one_draft_too_many_is_accepted, TOGETHER),
    (a_draft_is_accepted_after_a_rejected_one, TOGETHER),
    (the_noise_is_of_the_first_row, TOGETHER),
    (penalties_do_not_count_drafts, TOGETHER),
    (penalties_keep_rejected_drafts, TOGETHER),
    (the_mask_is_of_the_row_before, TOGETHER),
    (the_grammar_ignores_drafts, TOGETHER),
    (a_block_with_a_rejected_draft_is_shared, LOSING),
]


@pytest.fixture(scope="module")
def model(family: Callable[[str], Path]) -> Iterator[Model]:
    if not available_isas():
        pytest.skip("needs the native library")
    with loaded(family("llama"), "float32", available_isas()[-1]) as opened:
        yield opened


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """Include some long answers: few drafts are at the end of a block."""
    long = [Request([number] * 20, params(number, 300)) for number in (32, 33, 35, 36)]
    return [*tiny_requests()[1:], *long]


@pytest.fixture(scope="module")
def plain(model: Model, requests: list[Request]) -> Run:
    return model.run(PLAIN, requests)


@pytest.mark.parametrize("way", [TOGETHER, LOSING], ids=str)
def test_without_a_bug_the_answers_are_equal(
    model: Model, requests: list[Request], plain: Run, way: Way
) -> None:
    found = model.run(way, requests, plain.answers)
    assert mismatch(found, plain, requests) is None
    assert min(found.num_accepted, found.num_rejected) > 4 * len(requests)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[0].__name__)
def test_a_bug_makes_the_suite_fail(
    model: Model,
    requests: list[Request],
    plain: Run,
    monkeypatch: pytest.MonkeyPatch,
    bug: tuple[Callable[[pytest.MonkeyPatch], None], Way],
) -> None:
    plant, way = bug
    plant(monkeypatch)
    monkeypatch.setattr(ways, "first_difference", lambda *arguments: "")  # to save time
    found = model.run(way, requests, plain.answers)
    assert mismatch(found, plain, requests) is not None
