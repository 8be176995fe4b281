"""Sampling with the native kernel: the same tokens as `sampler`, the reference, in a fraction of the time."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.kernels import sampling as kernel
from octavo.kernels.library import KernelPool
from octavo.kernels.sampling import Row, RowStatus, SampledRow
from octavo.protocol import TokenLogprob
from octavo.sampling.random import noise_key
from octavo.sampling.row_error import NO_TOKEN_LEFT, SAMPLING_FAILED, UNUSABLE_LOGITS, RowError
from octavo.sampling.sampler import RowOutcome, SampleRow

logger = logging.getLogger(__name__)

FAILURES = {
    RowStatus.UNUSABLE_LOGITS: UNUSABLE_LOGITS,
    RowStatus.NO_TOKEN_LEFT: NO_TOKEN_LEFT,
    RowStatus.BAD_ID: SAMPLING_FAILED,
}


@dataclass(frozen=True)
class NativeSampler:
    pool: KernelPool

    def sample_rows(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[RowOutcome]:
        """See `sampler.sample_rows`."""
        kernel_rows = [kernel_row(row) for row in rows]
        drawn = iter(kernel.sample(self.pool, *_valid_rows(logits, kernel_rows)))
        return [
            RowOutcome(failure=SAMPLING_FAILED) if row is None else _outcome(next(drawn))
            for row in kernel_rows
        ]

    def score_rows(self, logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
        """See `sampler.score_rows`."""
        rows = [Row(temperature=0.0, logprobs=top, given=token_id) for token_id in token_ids]
        outcomes = [_outcome(outcome) for outcome in kernel.sample(self.pool, logits, rows)]
        scores = [outcome.logprob for outcome in outcomes if outcome.logprob is not None]
        if len(scores) < len(outcomes):
            raise RowError(next(outcome.failure for outcome in outcomes if outcome.failure))
        return scores


def _valid_rows(logits: torch.Tensor, rows: Sequence[Row | None]) -> tuple[torch.Tensor, list[Row]]:
    valid = [index for index, row in enumerate(rows) if row is not None]
    return (logits if len(valid) == len(rows) else logits[valid]), [row for row in rows if row is not None]


def kernel_row(row: SampleRow) -> Row | None:
    """Return the row's parameters for the kernel, or None if its history does not match its position."""
    state, params = row.state, row.state.params
    try:
        seen_ids, seen_counts = state.seen(row)
    except ValueError:
        logger.exception("cannot sample a row")
        return None
    return Row(
        temperature=params.temperature,
        noise_key=noise_key(state.seed, state.choice, row.position),
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seen_ids=None if state.tally is None else seen_ids,
        seen_counts=None if state.tally is None else seen_counts,
        bias_ids=state.bias_ids if params.logit_bias else None,
        bias_values=state.bias_values if params.logit_bias else None,
        banned_ids=state.stop_ids if state.bans_stop_at(row.position) else None,
        logprobs=params.logprobs,
        allowed=row.allowed,
    )


def _outcome(outcome: SampledRow) -> RowOutcome:
    if outcome.status != RowStatus.OK:
        return RowOutcome(failure=FAILURES[outcome.status])
    if outcome.logprob is None:
        return RowOutcome(outcome.token_id)
    return RowOutcome(outcome.token_id, TokenLogprob(outcome.token_id, outcome.logprob, outcome.top))
