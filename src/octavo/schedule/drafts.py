"""Speculative decoding: which sequences get drafts in a step, and how many.

Drafts use only what a step leaves: they are added after all slices are planned, from the rest of the token
budget and from blocks that nobody else needs in this step. If a draft is rejected, its sequence keeps the
block for its next tokens.

    tokens of a step    | known tokens of all slices | drafts |      | max_step_tokens

Under the policy WORTH, a row is drafted only if its chance of a token is higher than what the same time
yields without it: see `break_even`. Drafts can change when an answer arrives, but never what it is.
"""

from collections.abc import Sequence as Sequential

from octavo.cache import KVManager
from octavo.drafting.proposer import Speculation
from octavo.plan import SequenceSlice
from octavo.schedule.break_even import RowCosts, worth_drafting
from octavo.schedule.policy import DraftPolicy, SchedulerConfig
from octavo.schedule.sequence import Sequence
from octavo.schedule.sequence_drafts import Acceptance, SequenceDrafts

FIRST_CHANCE = 0.6  # that a drafted token is accepted, before any was
GUESS_STEPS = 16  # steps without drafts after which a guess is compared with the answer
GUESS_TOKENS = 4
# New tokens that proposers may read in one step. If many sequences begin together, some must wait, so that
# the step is not delayed by tens of milliseconds. At least one sequence reads, however long it is.
READ_PER_STEP = 1 << 14


class Drafts:
    """Owned by the Scheduler. Calls alternate: `add` when a step is planned, then the notes of its result."""

    def __init__(self, config: SchedulerConfig, kv: KVManager, speculation: Speculation | None) -> None:
        self._config = config
        self._kv = kv
        self._speculation = speculation
        self._costs = RowCosts()
        self._acceptance = Acceptance()  # of all sequences
        self._only_decodes = False  # whether the planned step has no prompt
        self._num_read = 0  # tokens that proposers have read in this step

    def add(
        self, slices: list[SequenceSlice], sequences: list[Sequence], budget: int, num_running: int
    ) -> None:
        """Add drafts to the slices of a step. `budget`: tokens that are left; `sequences`: of the slices."""
        if self._speculation is None:
            return
        self._speculation.learn()
        self._num_read = 0
        decoding = [
            i
            for i, sequence in enumerate(sequences)
            if slices[i].num_sampled and slices[i].start >= sequence.num_prompt
        ]
        self._only_decodes = len(decoding) == len(slices)
        depths = self._depths(slices, [sequences[i] for i in decoding], budget)
        spare_blocks = self._kv.num_available - num_running
        for i, depth in zip(decoding, depths, strict=True):
            drafted = self._propose(sequences[i], min(depth, budget)) if depth else ()
            if drafted:
                drafted, num_blocks = self._fitting(sequences[i], drafted, spare_blocks)
            if drafted:
                spare_blocks -= num_blocks
                budget -= len(drafted)
                slices[i] = sequences[i].with_drafts(slices[i], drafted)

    def note(self, sequence: Sequence, piece: SequenceSlice, num_accepted: int, num_new: int) -> None:
        """Note the result of a slice. The sequence has `num_new` new tokens."""
        drafts = sequence.drafts
        if drafts is None:
            return
        if piece.num_drafted:
            drafts.note_draft(num_accepted, piece.num_drafted)
            if num_new:  # otherwise the slice was late, which says nothing of its drafts
                drafts.acceptance.note(num_accepted, piece.num_drafted)
                self._acceptance.note(num_accepted, piece.num_drafted)
        if drafts.has_guess and num_new:
            drafts.note_tokens(sequence.token_ids[-num_new:])

    def note_step(self, slices: Sequential[SequenceSlice], seconds: float) -> None:
        if self._speculation is not None and self._only_decodes and slices:
            self._costs.note(sum([len(piece.token_ids) for piece in slices]), seconds)

    def close(self, sequence: Sequence) -> None:
        """Learn from a sequence that has ended without an error."""
        if self._speculation is not None and sequence.drafts is not None:
            proposer = sequence.drafts.proposer
            self._speculation.close(proposer, sequence.token_ids, sequence.num_prompt)

    def _depths(self, slices: list[SequenceSlice], decoding: list[Sequence], budget: int) -> list[int]:
        """Return how many tokens to draft for each sequence."""
        longest = self._config.max_draft_tokens
        if self._config.draft_policy is DraftPolicy.ALL:
            return [longest] * len(decoding)
        if not self._only_decodes:  # a step with a prompt is limited by computing, not by memory
            return [0] * len(decoding)
        prior = self._acceptance.chance(FIRST_CHANCE)
        chances = [s.drafts.acceptance.chance(prior) if s.drafts else prior for s in decoding]
        num_rows = sum([len(piece.token_ids) for piece in slices])
        depths = worth_drafting(chances, num_rows, longest, budget, self._costs)
        for sequence, depth in zip(decoding, depths, strict=True):
            if not depth:
                self._guess(sequence)
        return depths

    def _guess(self, sequence: Sequence) -> None:
        """From time to time, test whether drafts would be accepted again."""
        drafts = self._drafts_of(sequence)
        drafts.steps_since_guess += 1
        if drafts.steps_since_guess >= GUESS_STEPS and self._may_read(sequence):
            drafts.guess(self._propose(sequence, GUESS_TOKENS))

    def _may_read(self, sequence: Sequence) -> bool:
        """Return whether a proposer may read the new tokens of the sequence in this step."""
        num_new = len(sequence.token_ids) - self._drafts_of(sequence).num_read
        return self._num_read == 0 or self._num_read + num_new <= READ_PER_STEP

    def _propose(self, sequence: Sequence, limit: int) -> tuple[int, ...]:
        """Return draft tokens, none of which can be the last token of the answer."""
        rest = sequence.stop_length - len(sequence.token_ids)
        limit = min(limit, rest - 1)
        if limit <= 0 or not self._may_read(sequence):
            return ()
        drafts = self._drafts_of(sequence)
        self._num_read += len(sequence.token_ids) - drafts.num_read
        drafts.num_read = len(sequence.token_ids)
        drafted = tuple(drafts.proposer.propose(sequence.token_ids, limit)[:limit])
        stop_ids = sequence.request.stop_ids
        for number, token in enumerate(drafted):
            if token in stop_ids:
                return drafted[:number]
        return drafted

    def _drafts_of(self, sequence: Sequence) -> SequenceDrafts:
        if sequence.drafts is None:
            assert self._speculation is not None
            sequence.drafts = SequenceDrafts(self._speculation.open(sequence.request.cache_salt))
        return sequence.drafts

    def _fitting(
        self, sequence: Sequence, drafted: tuple[int, ...], spare_blocks: int
    ) -> tuple[tuple[int, ...], int]:
        """Get blocks for drafts. Return the drafts that have one, and the number of new blocks."""
        table, kv = sequence.block_table, self._kv
        assert table is not None
        num_held = len(table.block_ids)
        num_known = len(sequence.token_ids)
        num_blocks = min(kv.blocks_for(num_known + len(drafted)), num_held + max(0, spare_blocks))
        drafted = drafted[: max(0, num_blocks * kv.block_size - num_known)]
        if not kv.grow(table, num_known + len(drafted)):
            return (), 0
        return drafted, len(table.block_ids) - num_held
