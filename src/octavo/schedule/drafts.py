"""Speculative decoding: which sequences get drafts in a step, and how many.

Drafts use only what a step leaves: they are added after all slices are planned, from the rest of the token
budget and from blocks that nobody else needs in this step. If a draft is rejected, its sequence keeps the
block for its next tokens.

    tokens of a step    | known tokens of all slices | drafts |      | max_step_tokens

Under the policy WORTH, a row is drafted only if its chance of a token is higher than what the same time
yields without it: see `break_even`. Drafts can change when an answer arrives, but never what it is.
"""

from dataclasses import dataclass
from itertools import compress
from operator import not_

from octavo.cache import KVManager
from octavo.drafting.proposer import Speculation
from octavo.plan import SequenceSlice, SliceResult, StepPlan, StepResult
from octavo.schedule.break_even import RowCosts, worth_drafting
from octavo.schedule.draft_grants import DraftGrants
from octavo.schedule.pass_costs import StepForecast
from octavo.schedule.policy import DraftPolicy, SchedulerConfig
from octavo.schedule.sequence import Sequence
from octavo.schedule.sequence_drafts import FIRST_CHANCE, Acceptance, SequenceDrafts

GUESS_STEPS = 16  # steps without drafts after which a guess is compared with the answer
GUESS_TOKENS = 4
# New tokens that proposers may read in one step. If many sequences begin together, some must wait, so that
# the step is not delayed by tens of milliseconds. At least one sequence reads, however long it is.
READ_PER_STEP = 1 << 14


@dataclass
class DraftRoom:
    """What a step has left for drafts."""

    budget: int  # tokens
    spare_blocks: int


class Drafts:
    """Owned by the Scheduler. Calls alternate: `add` when a step is planned, then the notes of its result."""

    def __init__(self, config: SchedulerConfig, kv: KVManager, speculation: Speculation | None) -> None:
        self._config = config
        self._kv = kv
        self._speculation = speculation
        self._costs = RowCosts()
        self._grants = DraftGrants(self._costs, config.draft_context) if config.draft_context else None
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
        room = DraftRoom(budget, self._kv.num_available - num_running)
        for i in decoding:
            self._drafts_of(sequences[i]).num_steps += 1
        first, later = self._text_first(slices, sequences, decoding)
        without = self._add_from_text(slices, sequences, first, room)
        if self._grants is not None and (without or later):
            without = self._add_grants(self._grants, slices, sequences, sorted([*without, *later]), room)
            self._add_from_text(slices, sequences, [i for i in later if i in without], room)
            for i in later:
                if i not in without:
                    self._guess(sequences[i])

    def _text_first(
        self, slices: list[SequenceSlice], sequences: list[Sequence], decoding: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return the slices for which text is looked up first, and those for which the model is better."""
        if self._grants is None or self._config.draft_policy is DraftPolicy.ALL or not self._only_decodes:
            return decoding, []
        step = self._expected(slices, sequences)
        longest = self._config.max_draft_tokens
        is_later = [
            self._grants.are_better(sequences[i], self._chance(sequences[i]), step, longest) for i in decoding
        ]
        return list(compress(decoding, map(not_, is_later))), list(compress(decoding, is_later))

    def _add_from_text(
        self, slices: list[SequenceSlice], sequences: list[Sequence], decoding: list[int], room: DraftRoom
    ) -> list[int]:
        """Add drafts that proposers find. Return the slices that get none."""
        depths = self._depths(slices, [sequences[i] for i in decoding], room.budget)
        without = []
        for i, depth in zip(decoding, depths, strict=True):
            drafted = self._propose(sequences[i], min(depth, room.budget)) if depth else ()
            if drafted:
                drafted = drafted[: self._fitting(sequences[i], len(drafted), room)]
            if drafted:
                slices[i] = sequences[i].with_drafts(slices[i], drafted)
            else:
                without.append(i)
        return without

    def _add_grants(
        self,
        grants: DraftGrants,
        slices: list[SequenceSlice],
        sequences: list[Sequence],
        without: list[int],
        room: DraftRoom,
    ) -> list[int]:
        """Let the draft model draft for the slices that are `without` drafts from text. Return the others."""
        longest = self._config.max_draft_tokens
        if self._config.draft_policy is DraftPolicy.ALL:
            depths = [longest] * len(without)
        elif self._only_decodes:
            num_rows = sum([len(piece.token_ids) for piece in slices])
            depths = grants.depths(
                [sequences[i] for i in without],
                self._expected(slices, sequences),
                num_rows,
                longest,
                room.budget,
            )
        else:
            return without
        others = []
        for i, depth in zip(without, depths, strict=True):
            end = min(sequences[i].stop_length - 1, self._config.draft_context)
            rest = end - len(sequences[i].token_ids)
            num_granted = self._fitting(sequences[i], min(depth, room.budget, rest), room)
            if num_granted > 0:
                slices[i] = sequences[i].with_grant(slices[i], num_granted)
            else:
                others.append(i)
        return others

    def note(self, sequence: Sequence, piece: SequenceSlice, outcome: SliceResult, num_new: int) -> None:
        """Note the result of a slice. The sequence has `num_new` new tokens."""
        drafts = sequence.drafts
        if drafts is None:
            return
        num_drafted, num_accepted = outcome.num_drafted, outcome.num_accepted
        if num_drafted:
            drafts.note_draft(num_accepted, num_drafted)
            if not num_new:
                pass  # the slice was late, which says nothing of its drafts
            elif piece.num_drafted:
                drafts.acceptance.note(num_accepted, num_drafted)
                self._acceptance.note(num_accepted, num_drafted)
            elif self._grants is not None:
                self._grants.note(sequence, num_accepted, num_drafted)
        if drafts.has_guess and num_new:
            drafts.note_tokens(sequence.token_ids[-num_new:])

    def note_step(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        if result.draft_model_failed:
            self._grants = None
        if self._speculation is None or not self._only_decodes or not plan.slices:
            return
        seconds -= sum([one.seconds for one in result.draft_passes])
        if self._grants is not None:
            self._grants.note_passes(result.draft_passes, seconds)
        num_known = sum([piece.num_known for piece in plan.slices])
        num_drafted = sum([outcome.num_drafted for outcome in result.slices])
        self._costs.note(num_known + num_drafted, max(0.0, seconds))

    def close(self, sequence: Sequence) -> None:
        """Learn from a sequence that has ended without an error."""
        if self._speculation is not None and sequence.drafts is not None:
            proposer = sequence.drafts.proposer
            self._speculation.close(proposer, sequence.token_ids, sequence.num_prompt)

    def _depths(self, slices: list[SequenceSlice], decoding: list[Sequence], budget: int) -> list[int]:
        """Return how many tokens to draft from text for each sequence."""
        longest = self._config.max_draft_tokens
        if self._config.draft_policy is DraftPolicy.ALL:
            return [longest] * len(decoding)
        if not self._only_decodes:  # a step with a prompt is limited by computing, not by memory
            return [0] * len(decoding)
        num_rows = sum([len(piece.token_ids) + piece.num_granted for piece in slices])
        chances = [self._chance(sequence) for sequence in decoding]
        depths = worth_drafting(chances, num_rows, longest, budget, self._costs)
        for sequence, depth in zip(decoding, depths, strict=True):
            if not depth:
                self._guess(sequence)
        return depths

    def _chance(self, sequence: Sequence) -> float:
        """Return how likely a draft from text is accepted if those before it are."""
        return self._drafts_of(sequence).acceptance.chance(self._acceptance.chance(FIRST_CHANCE))

    def _expected(self, slices: list[SequenceSlice], sequences: list[Sequence]) -> StepForecast:
        """Return what the step is expected to yield with the drafts that it has."""
        num_rows = sum([len(piece.token_ids) for piece in slices])
        fixed, per_row = self._costs.at(num_rows)
        tokens = float(num_rows - sum([piece.num_drafted for piece in slices]))
        for piece, sequence in zip(slices, sequences, strict=True):
            chance = self._chance(sequence) if piece.num_drafted else 0.0
            tokens += sum([chance**depth for depth in range(1, piece.num_drafted + 1)])
        return StepForecast(tokens, fixed + per_row * num_rows)

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

    def _fitting(self, sequence: Sequence, num_drafts: int, room: DraftRoom) -> int:
        """Get blocks for drafts. Return how many fit."""
        table, kv = sequence.block_table, self._kv
        assert table is not None
        num_held = len(table.block_ids)
        num_known = len(sequence.token_ids)
        num_blocks = min(kv.blocks_for(num_known + num_drafts), num_held + max(0, room.spare_blocks))
        num_drafts = min(num_drafts, num_blocks * kv.block_size - num_known)
        if num_drafts <= 0 or not kv.grow(table, num_known + num_drafts):
            return 0
        room.spare_blocks -= len(table.block_ids) - num_held
        room.budget -= num_drafts
        return num_drafts
