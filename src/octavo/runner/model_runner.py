"""One step on one worker: plan in, tokens out. The work itself is in models, ops and sampling."""

import itertools
import logging
import time
from collections.abc import Callable

import msgspec
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
LEAST_PATIENCE = 0.002  # seconds

NOTHING = SliceResult()
LATE = SliceResult(is_late=True)


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
            return StepResult((), self._grammars.late(idle=True))
        began = time.monotonic()
        batch = build_batch(plan, self._slots, self._page_size, self._ops.device)
        hidden = self._forward(batch)
        ends = list(itertools.accumulate(len(piece.token_ids) for piece in plan.slices))
        failures = self._unusable(plan, hidden, ends)
        scores = self._score_prompts(plan, hidden, ends, failures)
        drawn = self._draw(plan, hidden, ends, failures, began)
        return StepResult(
            tuple(
                SliceResult(failure=failures[i])
                if i in failures
                else msgspec.structs.replace(drawn.get(i, NOTHING), prompt_logprobs=scores.get(i, ()))
                for i in range(len(plan.slices))
            ),
            self._grammars.late(idle=False),
        )

    def _unusable(self, plan: StepPlan, hidden: torch.Tensor, ends: list[int]) -> dict[int, Failure]:
        """Slices with a row that is not finite.

        Also where nothing is sampled: bad KV must not reach the prefix tree. Where every row draws a token
        (with a grammar it may not), the sampler will find it: such a row's logits are not finite either. The
        failure is the same, so that it does not tell who else was in the batch.
        """
        if self._grammars.is_empty and len(hidden) == sum(piece.num_sampled for piece in plan.slices):
            return {}
        finite = self._ops.are_finite(hidden)
        starts = [0, *ends[:-1]]
        return {
            i: UNUSABLE_LOGITS
            for i, (start, end) in enumerate(zip(starts, ends, strict=True))
            if not all(finite[start:end])
        }

    def _draw(
        self,
        plan: StepPlan,
        hidden: torch.Tensor,
        ends: list[int],
        failures: dict[int, Failure],
        began: float,
    ) -> dict[int, SliceResult]:
        """Tokens for the slices that end where a token is to be drawn. Adds to `failures`."""
        until = _patience(began)
        results: dict[int, SliceResult] = {}
        forced: dict[int, tuple[int, ...]] = {}
        rows: dict[int, SampleRow] = {}
        for i, piece in enumerate(plan.slices):
            if not piece.num_sampled or i in failures:
                continue
            allowed = self._grammars.allowed(piece.slot, until)
            if allowed is None:
                results[i] = LATE
            elif allowed.failure is not None:
                failures[i] = allowed.failure
            elif allowed.forced:
                forced[i] = allowed.forced
            else:
                position = piece.start + len(piece.token_ids)
                rows[i] = SampleRow(self._slots.state(piece.slot), position, allowed.mask)
        following: list[int] = []
        for i, outcome in zip(rows, self._outcomes(hidden, ends, rows), strict=True):
            if outcome.failure is not None or outcome.token_id is None:
                failures[i] = outcome.failure or UNUSABLE_LOGITS
                continue
            slot = plan.slices[i].slot
            try:
                self._slots.state(slot).append(outcome.token_id)
                # Tokens that are told with their logprobs come one by one: each has its own row of logits.
                if self._grammars.append(slot, outcome.token_id, jump=outcome.logprob is None):
                    following.append(i)
            except Exception:
                failures[i] = self._forgotten()
                continue
            results[i] = SliceResult(
                (outcome.token_id,), () if outcome.logprob is None else (outcome.logprob,)
            )
        until = _patience(began)
        forced |= {i: self._grammars.forced(plan.slices[i].slot, until) for i in following}
        for i, tokens in forced.items():
            try:
                results[i] = self._with_forced(plan.slices[i].slot, results.get(i, NOTHING), tokens)
            except Exception:
                failures[i] = self._forgotten()
        return results

    def _outcomes(
        self, hidden: torch.Tensor, ends: list[int], rows: dict[int, SampleRow]
    ) -> list[RowOutcome]:
        """Full logits for the rows that draw a token, and for no others."""
        if not rows:
            return []
        if len(rows) < len(hidden):
            hidden = hidden[torch.tensor([ends[i] - 1 for i in rows], device=hidden.device)]
        wanted = list(rows.values())
        outcomes: list[RowOutcome] = []
        for start in range(0, len(wanted), LOGITS_ROWS):
            end = start + LOGITS_ROWS
            logits = self._logits(hidden if len(hidden) <= LOGITS_ROWS else hidden[start:end])
            outcomes += self._sampler.sample_rows(logits, wanted[start:end])
        return outcomes

    def _with_forced(self, slot: int, result: SliceResult, tokens: tuple[int, ...]) -> SliceResult:
        if not tokens:
            return result
        for token_id in tokens:
            self._slots.state(slot).append(token_id)
        self._grammars.tell_forced(slot)
        return SliceResult((*result.token_ids, *tokens), result.logprobs)

    def _forgotten(self) -> Failure:
        """The step cannot be done again: others have taken their tokens in."""
        logger.exception("a token that was drawn cannot be remembered; its sequence is ended")
        return SAMPLING_FAILED

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


def _patience(began: float) -> float:
    """Until when a step waits for grammars: no longer than it has taken so far, or a moment."""
    now = time.monotonic()
    return now + max(now - began, LEAST_PATIENCE)
