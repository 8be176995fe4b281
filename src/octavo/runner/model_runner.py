"""One step on one worker: plan in, tokens out. The work itself is in models, ops and sampling."""

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future

import torch

from octavo.ops import Batch, Ops
from octavo.plan import SequenceSlice, SliceResult, StepPlan, StepResult
from octavo.protocol import Failure, TokenLogprob
from octavo.runner.batch_input import build_batch
from octavo.runner.slot_grammars import SlotGrammars
from octavo.runner.slots import Slots
from octavo.sampling import SAMPLING_FAILED, UNUSABLE_LOGITS, RowError, RowOutcome, Sampler, SampleRow

logger = logging.getLogger(__name__)

LOGITS_ROWS = 64  # so many at a time: a row of a large vocabulary takes a megabyte


class ModelRunner:
    """Owns the slots. `forward` is the model's, over the KV pages; `logits` takes rows of what it gives."""

    def __init__(
        self,
        forward: Callable[[Batch], torch.Tensor],
        logits: Callable[[torch.Tensor], torch.Tensor],
        sampler: Sampler,
        *,
        ops: Ops,
        page_size: int,
        max_running: int,
        grammars: SlotGrammars,
    ) -> None:
        self._forward = forward
        self._logits = logits
        self._sampler = sampler
        self._ops = ops
        self._page_size = page_size
        self._slots = Slots(max_running)
        self._grammars = grammars

    def execute(self, plan: StepPlan) -> StepResult:
        self._slots.update(plan)
        self._grammars.begin(plan)
        if not plan.slices:
            return StepResult(())
        batch = build_batch(plan, self._slots, self._page_size, self._ops.device)
        hidden = self._forward(batch)
        ends = list(itertools.accumulate(len(piece.token_ids) for piece in plan.slices))
        failures = self._unusable(hidden, ends, sum(piece.num_sampled for piece in plan.slices))
        scores = self._score_prompts(plan, hidden, ends, failures)
        sampled = self._sample(plan, hidden, ends, failures)
        return StepResult(
            tuple(
                SliceResult(failure=failures[i])
                if i in failures
                else SliceResult(*sampled.get(i, ((), ())), prompt_logprobs=scores.get(i, ()))
                for i in range(len(plan.slices))
            )
        )

    def _unusable(self, hidden: torch.Tensor, ends: list[int], num_sampled: int) -> dict[int, Failure]:
        """Slices with a row that is not finite.

        Also where nothing is sampled: bad KV must not reach the prefix tree. Where every row draws a token,
        the sampler will find it: such a row's logits are not finite either. The failure is the same, so
        that it does not tell who else was in the batch.
        """
        if len(hidden) == num_sampled:
            return {}
        finite = self._ops.are_finite(hidden)
        starts = [0, *ends[:-1]]
        return {
            i: UNUSABLE_LOGITS
            for i, (start, end) in enumerate(zip(starts, ends, strict=True))
            if not all(finite[start:end])
        }

    def _sample(
        self, plan: StepPlan, hidden: torch.Tensor, ends: list[int], failures: dict[int, Failure]
    ) -> dict[int, tuple[tuple[int, ...], tuple[TokenLogprob, ...]]]:
        """Full logits for the rows that draw a token, and for no others. Adds to `failures`."""
        chosen = [i for i, piece in enumerate(plan.slices) if piece.num_sampled and i not in failures]
        if not chosen:
            return {}
        if len(chosen) < len(hidden):
            hidden = hidden[torch.tensor([ends[i] - 1 for i in chosen], device=hidden.device)]
        outcomes: list[RowOutcome] = []
        for start in range(0, len(chosen), LOGITS_ROWS):
            end = start + LOGITS_ROWS
            rows = hidden if len(hidden) <= LOGITS_ROWS else hidden[start:end]
            logits = self._logits(rows)
            wanted = [self._sample_row(plan.slices[i]) for i in chosen[start:end]]
            outcomes += self._sampler.sample_rows(logits, wanted)
        sampled: dict[int, tuple[tuple[int, ...], tuple[TokenLogprob, ...]]] = {}
        following: dict[int, Future[list[int]]] = {}
        for i, outcome in zip(chosen, outcomes, strict=True):
            slot = plan.slices[i].slot
            failure = self._grammars.failure(slot) or outcome.failure
            if failure is not None or outcome.token_id is None:
                failures[i] = failure or UNUSABLE_LOGITS
                continue
            try:
                self._slots.state(slot).append(outcome.token_id)
                # Tokens that are told with their logprobs come one by one: each has its own row of logits.
                forced = self._grammars.append(slot, outcome.token_id, jump=outcome.logprob is None)
            except Exception:
                failures[i] = self._forgotten()
                continue
            sampled[i] = (outcome.token_id,), () if outcome.logprob is None else (outcome.logprob,)
            if forced is not None:
                following[i] = forced
        for i, forced in following.items():
            try:
                for token_id in forced.result():
                    self._slots.state(plan.slices[i].slot).append(token_id)
                    sampled[i] = (*sampled[i][0], token_id), sampled[i][1]
            except Exception:
                failures[i] = self._forgotten()
                del sampled[i]
        return sampled

    def _forgotten(self) -> Failure:
        """The step cannot be done again: others have taken their tokens in."""
        logger.exception("a token that was drawn cannot be remembered; its sequence is ended")
        return SAMPLING_FAILED

    def _sample_row(self, piece: SequenceSlice) -> SampleRow:
        """Waits for the grammar's mask, which is mostly there by now."""
        position = piece.start + len(piece.token_ids)
        return SampleRow(self._slots.state(piece.slot), position, self._grammars.mask(piece.slot))

    def _score_prompts(
        self, plan: StepPlan, hidden: torch.Tensor, ends: list[int], failures: dict[int, Failure]
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Logprobs of prompt tokens, for the requests that asked. Adds to `failures`."""
        scores: dict[int, tuple[TokenLogprob, ...]] = {}
        for i, piece in enumerate(plan.slices):
            if piece.score_ids and i not in failures:
                first_row = ends[i] - len(piece.token_ids)
                try:
                    scores[i] = tuple(self._score_slice(piece, hidden[first_row : ends[i]]))
                except RowError as error:
                    failures[i] = error.failure
        return scores

    def _score_slice(self, piece: SequenceSlice, rows: torch.Tensor) -> list[TokenLogprob]:
        top = self._slots.state(piece.slot).params.prompt_logprobs or 0
        scores: list[TokenLogprob] = []
        for start in range(0, len(piece.score_ids), LOGITS_ROWS):
            token_ids = piece.score_ids[start : start + LOGITS_ROWS]
            logits = self._logits(rows[start : start + len(token_ids)])
            scores += self._sampler.score_rows(logits, token_ids, top)
        return scores
