"""Draw tokens from logits. The result of a row depends on that row alone.

A token is drawn by Gumbel-max: the token with the largest log-probability + noise, where the noise is a
function of (seed, choice, position) and the token id. The token at a position is therefore determined by the
logits and the request, and a speculated token is correct exactly if it equals the one drawn here.

Sampling needs float64: if the device does not support it, pass the logits on the CPU.
"""

import logging
import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from octavo.plan import SlotOpening
from octavo.protocol import Failure, TokenLogprob
from octavo.sampling import transforms
from octavo.sampling.logprobs import token_logprob
from octavo.sampling.random import gumbel, noise_key
from octavo.sampling.row_error import NO_TOKEN_LEFT, SAMPLING_FAILED, UNUSABLE_LOGITS, RowError
from octavo.sampling.tally import TokenTally

logger = logging.getLogger(__name__)

NO_IDS = torch.empty(0, dtype=torch.int64)
NO_VALUES = torch.empty(0, dtype=torch.float32)


class RowState:
    """The sampling state of one sequence. It lives as long as the sequence has its slot."""

    def __init__(self, opening: SlotOpening) -> None:
        params = opening.params
        if params.temperature > 0 and params.seed is None:
            raise ValueError("a sampled sequence needs params.seed; frontend.intake sets it")
        self.params = params
        self.seed = params.seed or 0
        self.choice = opening.choice
        self.num_prompt = opening.num_prompt
        self.num_tokens = len(opening.token_ids)
        self.stop_ids = torch.tensor(opening.stop_ids, dtype=torch.int64)
        self.bias_ids = torch.tensor(list(params.logit_bias), dtype=torch.int64)
        self.bias_values = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
        self.tally = _open_tally(opening)

    def append(self, token_id: int) -> None:
        """Add a token that was drawn and accepted."""
        self.num_tokens += 1
        if self.tally is not None:
            self.tally.add(token_id)

    def seen(self, row: "SampleRow") -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids and counts of the tokens before the row, for the penalties. Raises ValueError."""
        if self.tally is None:
            return NO_IDS, NO_VALUES
        if self.num_tokens + len(row.drafts) != row.position:
            # Penalties computed from a longer or shorter history would silently change the answer.
            raise ValueError(
                f"the history has {self.num_tokens} tokens and {len(row.drafts)} drafts, "
                f"but the position is {row.position}"
            )
        return self.tally.ahead(row.drafts)

    def bans_stop_at(self, position: int) -> bool:
        return position - self.num_prompt < self.params.min_tokens and len(self.stop_ids) > 0

    def edits_at(self, position: int) -> bool:
        """Return whether the parameters change the logits at this position."""
        return self.tally is not None or len(self.bias_ids) > 0 or self.bans_stop_at(position)


class Sampler(Protocol):
    """Draws tokens from logits. The result of a row depends on that row alone."""

    def sample_rows(self, logits: torch.Tensor, rows: "Sequence[SampleRow]") -> "list[RowOutcome]":
        """Draw one token per row of float32 [rows, vocab]. Does not append it to the state."""
        ...

    def score_rows(self, logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
        """Return the logprob of a given token under each row. Raises RowError if a row is unusable."""
        ...


class SampleRow(msgspec.Struct, frozen=True):
    state: RowState
    position: int  # of the token to draw: its index in the sequence's token_ids
    allowed: torch.Tensor | None = None  # the grammar's mask, see `transforms.keep_allowed`
    drafts: tuple[int, ...] = ()  # the tokens before the position that are not in the state

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token with the largest raw logit is the result."""
        edited = self.allowed is not None or self.state.edits_at(self.position)
        return self.state.params.temperature == 0 and not edited


class RowOutcome(msgspec.Struct, frozen=True):
    """A token, or a failure of this row alone."""

    token_id: int | None = None
    logprob: TokenLogprob | None = None  # if requested
    failure: Failure | None = None


class TorchSampler:
    """The sampler in plain torch: the reference for every other sampler."""

    def sample_rows(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[RowOutcome]:
        return sample_rows(logits, rows)

    def score_rows(self, logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
        return score_rows(logits, token_ids, top)


def sample_rows(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[RowOutcome]:
    """Draw one token per row of float32 [rows, vocab]. Does not append it to the state."""
    if len(logits) != len(rows):
        raise ValueError(f"{len(logits)} rows of logits for {len(rows)} rows to sample")
    # For equal logits, `max` returns the first index. If there is a NaN, `max` returns it.
    peaks, best_ids = logits.max(dim=-1)
    return [
        _sample_row(row_logits, row, peak, best_id)
        for row_logits, row, peak, best_id in zip(
            logits, rows, peaks.tolist(), best_ids.tolist(), strict=True
        )
    ]


def score_rows(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Return the logprob of a given token under each row, for prompt logprobs. Raises RowError if a row is
    unusable."""
    if not all(math.isfinite(peak) for peak in logits.amax(dim=-1).tolist()):
        raise RowError(UNUSABLE_LOGITS)
    return [token_logprob(row, token_id, top) for row, token_id in zip(logits, token_ids, strict=True)]


def _sample_row(logits: torch.Tensor, row: SampleRow, peak: float, best_id: int) -> RowOutcome:
    """Sample one row. Errors are caught here, so that they do not affect other rows."""
    try:
        if not math.isfinite(peak):
            raise RowError(UNUSABLE_LOGITS)
        token_id = best_id if row.is_plain_greedy else _draw(logits, row)
        top = row.state.params.logprobs
        return RowOutcome(token_id, None if top is None else token_logprob(logits, token_id, top))
    except RowError as error:
        return RowOutcome(failure=error.failure)
    except Exception:
        logger.exception("sampling failed for one row at position %d", row.position)
        return RowOutcome(failure=SAMPLING_FAILED)


def _draw(logits: torch.Tensor, row: SampleRow) -> int:
    state = row.state
    seen_ids, seen_counts = state.seen(row)
    edited = transforms.edit(
        logits,
        state.params,
        seen_ids=seen_ids,
        seen_counts=seen_counts,
        bias_ids=state.bias_ids,
        bias_values=state.bias_values,
        banned_ids=state.stop_ids if state.bans_stop_at(row.position) else NO_IDS,
        allowed=row.allowed,
    )
    peak, best_id = edited.max(dim=0)
    if not math.isfinite(peak):
        raise RowError(NO_TOKEN_LEFT)
    if state.params.temperature == 0:
        return int(best_id)
    scores = transforms.distribution(edited, state.params)
    return gumbel_max(scores, noise_key(state.seed, state.choice, row.position))


def gumbel_max(scores: torch.Tensor, key: int) -> int:
    """Draw a token with probability softmax(scores). Tokens at -inf are never drawn."""
    ids = torch.nonzero(scores > -math.inf).squeeze(1)
    return int(ids[(scores[ids] + gumbel(key, ids)).argmax()])


def _open_tally(opening: SlotOpening) -> TokenTally | None:
    """Return a tally if a penalty needs one. Only the repetition penalty needs the prompt in it."""
    params = opening.params
    counts_prompt = params.repetition_penalty != 1.0
    if not (counts_prompt or params.presence_penalty or params.frequency_penalty):
        return None
    prompt_ids = opening.token_ids[: opening.num_prompt] if counts_prompt else ()
    return TokenTally(prompt_ids, opening.token_ids[opening.num_prompt :])
