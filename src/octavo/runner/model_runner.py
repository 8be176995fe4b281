"""One step on one worker: plan in, tokens out. The work itself is in models, ops and sampling."""

import itertools
import logging
import time
from collections.abc import Callable

import msgspec
import torch

from octavo.ops import Batch, Ops
from octavo.plan import DraftPass, SequenceSlice, SliceResult, StepPlan, StepResult
from octavo.protocol import Failure, TokenLogprob
from octavo.runner.batch_input import build_batch
from octavo.runner.draft_model import DraftModel
from octavo.runner.slot_grammars import AllowedTokens, SlotGrammars
from octavo.runner.slots import Slots
from octavo.sampling import SAMPLING_FAILED, UNUSABLE_LOGITS, RowError, RowOutcome, Sampler, SampleRow

logger = logging.getLogger(__name__)

LOGITS_ROWS = 64  # rows of logits at a time: one row of a large vocabulary takes a megabyte
MIN_WAIT = 0.002  # seconds, for grammars

NOTHING = SliceResult()
LATE = SliceResult(is_late=True)


class ModelRunner:
    """Owns the slots. `forward` runs the model over the KV blocks; `logits` takes rows of its result."""

    def __init__(
        self,
        forward: Callable[[Batch], torch.Tensor],
        logits: Callable[[torch.Tensor], torch.Tensor],
        sampler: Sampler,
        *,
        ops: Ops,
        block_size: int,
        max_running: int,
        grammars: SlotGrammars,
        draft_model: DraftModel | None = None,
    ) -> None:
        self._forward = forward
        self._logits = logits
        self._sampler = sampler
        self._ops = ops
        self._block_size = block_size
        self._slots = Slots(max_running)
        self._grammars = grammars
        self._draft_model = draft_model

    def execute(self, plan: StepPlan) -> StepResult:
        self._slots.update(plan)
        passes: tuple[DraftPass, ...] = ()
        if self._draft_model is not None:
            plan, passes = self._draft_model.extend(plan, self._slots)
        self._grammars.begin(plan)
        if not plan.slices:
            return StepResult((), self._grammars.late(idle=True))
        began = time.monotonic()
        batch = build_batch(plan.slices, self._slots, self._block_size, self._ops.device)
        hidden = self._forward(batch)
        ends = list(itertools.accumulate(len(piece.token_ids) for piece in plan.slices))
        failures = self._unusable(plan, hidden, ends)
        scores = self._score_prompts(plan, hidden, ends, failures)
        drawn = self._draw(plan, hidden, ends, failures, began)
        results = tuple(
            [
                SliceResult(failure=failures[i], num_drafted=piece.num_drafted)
                if i in failures
                else msgspec.structs.replace(
                    drawn.get(i, NOTHING), prompt_logprobs=scores.get(i, ()), num_drafted=piece.num_drafted
                )
                for i, piece in enumerate(plan.slices)
            ]
        )
        if self._draft_model is not None:
            self._draft_model.settle(plan, results, self._slots)
        has_failed = self._draft_model is not None and self._draft_model.has_failed
        return StepResult(results, self._grammars.late(idle=False), passes, has_failed)

    def _unusable(self, plan: StepPlan, hidden: torch.Tensor, ends: list[int]) -> dict[int, Failure]:
        """Return a failure for every slice with a row that is not finite.

        This includes slices that sample nothing, because bad KV must not reach the prefix tree. If every row
        samples a token (with a grammar it may not), the sampler finds such rows, since their logits are not
        finite either. The failure is the same, so it does not depend on the rest of the batch.
        """
        if self._grammars.is_empty and len(hidden) == sum(piece.num_sampled for piece in plan.slices):
            return {}
        finite = self._ops.are_finite(hidden)
        starts = [0, *ends[:-1]]
        return {
            i: UNUSABLE_LOGITS
            for i, (piece, start) in enumerate(zip(plan.slices, starts, strict=True))
            if not all(finite[start : start + piece.num_known])  # a draft may be wrong: see `verified`
        }

    def _draw(
        self,
        plan: StepPlan,
        hidden: torch.Tensor,
        ends: list[int],
        failures: dict[int, Failure],
        began: float,
    ) -> dict[int, SliceResult]:
        """Return tokens for the slices that sample one. Adds to `failures`."""
        until = _wait_until(began)
        results: dict[int, SliceResult] = {}
        forced: dict[int, tuple[int, ...]] = {}
        rows: dict[int, list[SampleRow]] = {}
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
                rows[i] = self._rows(piece, allowed, until)
        following: list[int] = []
        for i, of_slice in self._outcomes(plan, hidden, ends, rows).items():
            piece = plan.slices[i]
            outcomes = verified(of_slice, piece.draft_ids)
            if outcomes[0].token_id is None:
                failures[i] = outcomes[0].failure or UNUSABLE_LOGITS
                continue
            try:
                results[i] = self._record(piece.slot, outcomes)
                # Tokens with logprobs are generated one at a time: each needs its own row of logits.
                if self._grammars.append(piece.slot, results[i].token_ids, jump=not results[i].logprobs):
                    following.append(i)
            except Exception:
                failures[i] = self._log_unrecorded()
        until = _wait_until(began)
        forced |= {i: self._grammars.forced(plan.slices[i].slot, until) for i in following}
        for i, tokens in forced.items():
            try:
                results[i] = self._with_forced(plan.slices[i].slot, results.get(i, NOTHING), tokens)
            except Exception:
                failures[i] = self._log_unrecorded()
        return results

    def _rows(self, piece: SequenceSlice, allowed: AllowedTokens, until: float) -> list[SampleRow]:
        """Return the rows of a slice to sample: that of its last known token, then those of its drafts."""
        state = self._slots.state(piece.slot)
        position = piece.start + piece.num_known
        rows = [SampleRow(state, position, allowed.mask)]
        if piece.num_drafted:
            drafted = piece.draft_ids
            ahead = self._grammars.allowed_ahead(piece.slot, piece.num_drafted, until)
            rows += [
                SampleRow(state, position + number, after.mask, drafted[:number])
                for number, after in enumerate(ahead, 1)
            ]
        return rows

    def _outcomes(
        self, plan: StepPlan, hidden: torch.Tensor, ends: list[int], rows: dict[int, list[SampleRow]]
    ) -> dict[int, list[RowOutcome]]:
        """Sample the given rows of each slice. Full logits are computed for these rows only."""
        if not rows:
            return {}
        sample_rows = [row for of_slice in rows.values() for row in of_slice]
        if len(sample_rows) < len(hidden):
            firsts = {i: ends[i] - 1 - plan.slices[i].num_drafted for i in rows}
            places = [firsts[i] + number for i in rows for number in range(len(rows[i]))]
            hidden = hidden[torch.tensor(places, device=hidden.device)]
        outcomes: list[RowOutcome] = []
        for start in range(0, len(sample_rows), LOGITS_ROWS):
            end = start + LOGITS_ROWS
            logits = self._logits(hidden if len(hidden) <= LOGITS_ROWS else hidden[start:end])
            outcomes += self._sampler.sample_rows(logits, sample_rows[start:end])
        remaining = iter(outcomes)
        return {i: list(itertools.islice(remaining, len(of_slice))) for i, of_slice in rows.items()}

    def _record(self, slot: int, outcomes: list[RowOutcome]) -> SliceResult:
        """Add sampled tokens to the state of the slot."""
        token_ids = tuple([outcome.token_id for outcome in outcomes if outcome.token_id is not None])
        state = self._slots.state(slot)
        for token_id in token_ids:
            state.append(token_id)
        logprobs = tuple([outcome.logprob for outcome in outcomes if outcome.logprob is not None])
        return SliceResult(token_ids, logprobs, num_accepted=len(token_ids) - 1)

    def _with_forced(self, slot: int, result: SliceResult, tokens: tuple[int, ...]) -> SliceResult:
        if not tokens:
            return result
        for token_id in tokens:
            self._slots.state(slot).append(token_id)
        self._grammars.mark_forced_reported(slot)
        return SliceResult((*result.token_ids, *tokens), result.logprobs, num_accepted=result.num_accepted)

    def _log_unrecorded(self) -> Failure:
        """Log the exception and return a failure. The step cannot be repeated: other tokens are recorded."""
        logger.exception("failed to record a sampled token, ending its sequence with an error")
        return SAMPLING_FAILED

    def _score_prompts(
        self, plan: StepPlan, hidden: torch.Tensor, ends: list[int], failures: dict[int, Failure]
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Return logprobs of prompt tokens, for slices that need them. Adds to `failures`."""
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


def verified(outcomes: list[RowOutcome], draft_ids: tuple[int, ...]) -> list[RowOutcome]:
    """Return the outcomes whose context is right: the first, and each that follows an accepted draft.

    A row of a draft that failed is left out: its token is computed again in the next step, and if it fails
    there too, the sequence ends after the same tokens as without drafts.
    """
    kept = outcomes[:1]
    for draft, outcome in zip(draft_ids, outcomes[1:], strict=False):  # grammars may leave rows out
        if kept[-1].token_id != draft or outcome.token_id is None:
            break
        kept.append(outcome)
    return kept


def _wait_until(began: float) -> float:
    """Return until when a step waits for grammars: as long as it has taken so far, but at least MIN_WAIT."""
    now = time.monotonic()
    return now + max(now - began, MIN_WAIT)
