"""A small model that drafts tokens for the large one.

It has KV of its own in blocks with the same ids, so a block table is valid for both models:

    block 7 of the large model   keys and values of positions 32 to 63
    block 7 of the draft model   the same positions, if the draft model has computed them

Nothing that the draft model computes reaches an answer: the large model verifies every draft. If its KV is
wrong or missing, drafts are rejected more often, and that is all.
"""

import logging
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from octavo.ops import Batch, Ops
from octavo.ops.batch import INTEGER
from octavo.plan import DraftPass, SequenceSlice, SliceResult, StepPlan
from octavo.runner.batch_input import build_batch
from octavo.runner.slots import Slots
from octavo.sampling import Sampler, SampleRow

logger = logging.getLogger(__name__)

# Known tokens that the draft model has not computed yet. Up to MAX_LAG of a sequence are computed in the same
# pass that drafts its first token. More are caught up in passes of their own, so that a long prompt does not
# delay the other sequences of the step.
MAX_LAG = 16
CATCH_UP_TOKENS = 256  # per step
# Tokens for which nothing is drafted after the draft model has expected the end of an answer that goes on,
# because its grammar requires that: the model would expect the end again.
SILENT_TOKENS = 16


@dataclass
class SlotTokens:
    """The prompt and the answer so far of one slot."""

    token_ids: "array[int]"
    num_computed: int = 0  # the draft model has KV for these
    num_filled: int = 0  # leading blocks of these that are marked as filled
    silent_until: int = 0  # position of the next token that is drafted


@dataclass
class SliceDrafts:
    """What is drafted for one slice."""

    piece: SequenceSlice
    token_ids: list[int] = field(default_factory=list)
    is_over: bool = False

    @property
    def end(self) -> int:
        return self.piece.start + self.piece.num_known


class DraftModel:
    """Owned by ModelRunner. `forward` and `logits` are those of the draft model."""

    def __init__(
        self,
        forward: Callable[[Batch], torch.Tensor],
        logits: Callable[[torch.Tensor], torch.Tensor],
        sampler: Sampler,
        *,
        ops: Ops,
        num_blocks: int,
        block_size: int,
        max_running: int,
        vocab_size: int,
        num_embeddings: int,
    ) -> None:
        """`vocab_size` is that of the large model, `num_embeddings` that of the draft model."""
        self._forward = forward
        self._logits = logits
        self._sampler = sampler
        self._ops = ops
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._num_embeddings = num_embeddings
        self._tokens: list[SlotTokens | None] = [None] * max_running
        # Blocks whose positions the draft model has computed. Such a block can be reused like a cached one.
        self._is_filled = bytearray(num_blocks)
        self.has_failed = False

    def extend(self, plan: StepPlan, slots: Slots) -> tuple[StepPlan, tuple[DraftPass, ...]]:
        """Return the plan with drafts in the slices that may have some, and the passes that this took.

        `slots` have applied the changes of the plan.
        """
        if not self.has_failed:
            try:
                return self._extend(plan, slots)
            except Exception:
                self._fail()
        return without_grants(plan), ()

    def settle(self, plan: StepPlan, results: Sequence[SliceResult], slots: Slots) -> None:
        """Add the new tokens, and keep what was computed for known and accepted ones.

        `plan` is one that `extend` returned.
        """
        if not self.has_failed:
            try:
                for piece, result in zip(plan.slices, results, strict=True):
                    self._settle(piece, result, slots)
            except Exception:
                self._fail()

    def _fail(self) -> None:
        """Log the exception. Answers do not need drafts."""
        logger.exception("the draft model failed: the engine continues without it until it is restarted")
        self.has_failed = True

    def _extend(self, plan: StepPlan, slots: Slots) -> tuple[StepPlan, tuple[DraftPass, ...]]:
        for slot in plan.closed:
            self._tokens[slot] = None
        for opening in plan.opened:
            self._tokens[opening.slot] = SlotTokens(array(INTEGER, opening.token_ids))
        for piece in plan.slices:
            self._follow(piece, slots)
        granted = {piece.slot: SliceDrafts(piece) for piece in plan.slices if piece.num_granted}
        if not granted:
            return plan, ()
        passes: list[DraftPass] = []
        ready = self._catch_up(list(granted.values()), slots, passes)
        while ready:
            ready = self._draft(ready, slots, passes)
        pieces = tuple(
            [
                piece.with_drafts(tuple(granted[piece.slot].token_ids)) if piece.num_granted else piece
                for piece in plan.slices
            ]
        )
        for piece in pieces:
            if piece.slot in granted:
                self._mark_unfilled(piece, slots.tables[piece.slot])
        return msgspec.structs.replace(plan, slices=pieces), tuple(passes)

    def _settle(self, piece: SequenceSlice, result: SliceResult, slots: Slots) -> None:
        held = self._tokens_of(piece.slot)
        end = piece.start + piece.num_known
        if result.token_ids:  # then there were no known tokens after the slice
            held.token_ids[end:] = array(INTEGER, result.token_ids)
        held.num_computed = min(held.num_computed, end + result.num_accepted)
        num_filled, table = held.num_computed // self._block_size, slots.tables[piece.slot]
        for index in range(held.num_filled, num_filled):
            self._is_filled[table[index]] = 1
        held.num_filled = num_filled

    # -- which KV is valid --------------------------------------------------------------------------------

    def _follow(self, piece: SequenceSlice, slots: Slots) -> None:
        """Find out which KV is still valid with the blocks of a slice."""
        held, table, size = self._tokens_of(piece.slot), slots.tables[piece.slot], self._block_size
        held.num_computed = min(held.num_computed, piece.start)
        full, rest = divmod(held.num_computed, size)
        if piece.table_from * size < held.num_computed:  # blocks were replaced by others with the same tokens
            kept = self._num_filled(table, min(piece.table_from, full), full)
            if kept < full or rest:
                full, held.num_computed = kept, kept * size
        held.num_filled = self._num_filled(table, full, piece.start // size)
        if held.num_filled > full:  # shared blocks, which were computed for another sequence
            held.num_computed = held.num_filled * size
        self._mark_unfilled(piece, table)

    def _num_filled(self, table: Sequence[int], first: int, end: int) -> int:
        """Return how many leading blocks are filled, if those before `first` are. At most `end`."""
        while first < end and self._is_filled[table[first]]:
            first += 1
        return first

    def _mark_unfilled(self, piece: SequenceSlice, table: Sequence[int]) -> None:
        """Mark the blocks that the large model writes to, except those that the draft model has computed."""
        first = max(self._tokens_of(piece.slot).num_filled, piece.start // self._block_size)
        end = -(-(piece.start + len(piece.token_ids)) // self._block_size)
        for index in range(first, end):
            self._is_filled[table[index]] = 0

    # -- passes of the draft model ------------------------------------------------------------------------

    def _catch_up(
        self, drafts: list[SliceDrafts], slots: Slots, passes: list[DraftPass]
    ) -> list[SliceDrafts]:
        """Compute known tokens of sequences that lag behind. Return those that can draft in this step."""
        budget = CATCH_UP_TOKENS
        ready: list[SliceDrafts] = []
        pieces: list[SequenceSlice] = []
        for one in drafts:
            held = self._tokens_of(one.piece.slot)
            if one.end < held.silent_until:
                continue
            lag = one.end - held.num_computed
            num_tokens = min(lag - 1, budget)
            if lag > MAX_LAG and num_tokens > 0:
                pieces.append(self._slice(one.piece.slot, held.num_computed + num_tokens))
                budget -= num_tokens
                lag -= num_tokens
            if lag <= MAX_LAG:
                ready.append(one)
        if pieces:
            began = time.perf_counter()
            self._compute(pieces, slots)[-1].tolist()  # a GPU has then computed them
            num_rows = sum([len(piece.token_ids) for piece in pieces])
            passes.append(DraftPass(num_rows, time.perf_counter() - began, catches_up=True))
        return ready

    def _draft(self, drafts: list[SliceDrafts], slots: Slots, passes: list[DraftPass]) -> list[SliceDrafts]:
        """Draft one token for each slice. Return those for which another one may be drafted."""
        began = time.perf_counter()
        pieces = [self._slice(one.piece.slot, one.end, one.token_ids) for one in drafts]
        hidden = self._compute(pieces, slots)
        ends = torch.tensor([len(piece.token_ids) for piece in pieces]).cumsum(0) - 1
        if len(ends) < len(hidden):
            hidden = hidden[ends.to(hidden.device)]
        # With the noise of the large model, so that both draw the same token if their logits are similar.
        rows = [
            SampleRow(slots.state(one.piece.slot), one.end + len(one.token_ids), None, tuple(one.token_ids))
            for one in drafts
        ]
        outcomes = self._sampler.sample_rows(self._fitted(self._logits(hidden)), rows)
        for one, outcome in zip(drafts, outcomes, strict=True):
            token_id = outcome.token_id
            if token_id is None or token_id in slots.state(one.piece.slot).stop_ids:
                one.is_over = True
                if not one.token_ids:
                    self._tokens_of(one.piece.slot).silent_until = one.end + SILENT_TOKENS
                continue
            one.token_ids.append(token_id)
            one.is_over = len(one.token_ids) == one.piece.num_granted
        num_rows = sum([len(piece.token_ids) for piece in pieces])
        passes.append(DraftPass(num_rows, time.perf_counter() - began))
        return [one for one in drafts if not one.is_over]

    def _slice(self, slot: int, end: int, drafted: Sequence[int] = ()) -> SequenceSlice:
        """Return the tokens that the draft model has to compute, up to `end`, then the drafted ones."""
        held = self._tokens_of(slot)
        known = max(0, end - held.num_computed)
        token_ids = tuple(held.token_ids[held.num_computed : end])
        token_ids += tuple(drafted[held.num_computed + known - end :])
        if self._num_embeddings < self._vocab_size:  # padding may differ: text has no such tokens
            token_ids = tuple([token if token < self._num_embeddings else 0 for token in token_ids])
        return SequenceSlice(slot, held.num_computed, token_ids, 0, (), 1)

    def _compute(self, pieces: list[SequenceSlice], slots: Slots) -> torch.Tensor:
        hidden = self._forward(build_batch(pieces, slots, self._block_size, self._ops.device))
        for piece in pieces:
            self._tokens_of(piece.slot).num_computed = piece.start + len(piece.token_ids)
        return hidden

    def _fitted(self, logits: torch.Tensor) -> torch.Tensor:
        """Return one logit per token of the large model. Vocabularies may be padded to different sizes."""
        num_missing = self._vocab_size - logits.shape[1]  # negative: some are cut off
        if num_missing == 0:
            return logits
        return torch.nn.functional.pad(logits, (0, num_missing), value=-torch.inf).contiguous()

    def _tokens_of(self, slot: int) -> SlotTokens:
        held = self._tokens[slot]
        assert held is not None, "the plan has a slice for a slot that is not open"
        return held


def without_grants(plan: StepPlan) -> StepPlan:
    pieces = [piece.with_drafts(()) if piece.num_granted else piece for piece in plan.slices]
    return msgspec.structs.replace(plan, slices=tuple(pieces))
