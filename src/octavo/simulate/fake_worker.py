"""A worker that executes a StepPlan exactly as a real runner must, but computes hashes instead of tensors."""

import random

from octavo.plan import DraftPass, SequenceSlice, SliceResult, SlotOpening, StepPlan, StepResult
from octavo.protocol import Failure, FailureCode, TokenLogprob
from octavo.simulate.fake_grammar import MAX_FORCED, FakeMatcher
from octavo.simulate.fake_model import Hints, draw_token, empty_context, kv_row, logprob_of

NOTHING = SliceResult()
DRAFT_ERRORS = 0.2  # fraction of the draft model's tokens that are wrong
POISONED = Failure(FailureCode.ENGINE_FAILED, "poisoned")


class PlanError(Exception):
    """A plan that no worker could execute."""


class Slot:
    """The state of one sequence in a worker. `open` must reset all state of the previous owner."""

    __slots__ = (
        "choice",
        "fails_at",
        "hints",
        "is_open",
        "matcher",
        "seed",
        "start",
        "stop_ids",
        "table",
        "tally",
        "wants_logprobs",
    )

    def __init__(self) -> None:
        self.is_open = False
        self.hints = Hints(0, 0)
        self.seed = self.start = self.choice = self.tally = 0
        self.fails_at = -1  # the position of the token that cannot be drawn
        self.stop_ids: tuple[int, ...] = ()
        self.matcher = FakeMatcher()
        self.wants_logprobs = False
        self.table: list[int] = []

    def open(self, opening: SlotOpening) -> None:
        seed = opening.params.seed
        assert seed is not None
        self.is_open = True
        self.seed = seed
        self.hints = Hints.from_seed(seed)
        self.start = empty_context(self.hints.salt)
        self.choice = opening.choice
        self.stop_ids = opening.stop_ids
        poison = self.hints.poison
        self.fails_at = opening.num_prompt + poison - 2 if poison > 1 else -1
        self.wants_logprobs = opening.params.logprobs is not None
        self.tally = sum(opening.token_ids[opening.num_prompt :])
        self.matcher = FakeMatcher(opening.token_ids[opening.num_prompt :])
        self.table = []


class FakeWorker:
    """KV is one number per row. Blocks are never cleared: they contain the rows of their previous owners."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_running: int,
        vocab: int,
        *,
        late_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`late_rate`: fraction of slices with a token to draw whose grammar mask is late."""
        self.block_size = block_size
        self._late_rate = late_rate
        self._rng = random.Random(seed)
        self._late: dict[int, int] = {}  # slots, and the number of steps that they must skip
        self.vocab = vocab
        self.blocks = [
            [~(block * block_size + row) for row in range(block_size)] for block in range(num_blocks)
        ]
        self.slots = [Slot() for _ in range(max_running)]
        self._uncertain: set[int] = set()  # slots that a lost step left either open or closed

    def execute(self, plan: StepPlan) -> StepResult:
        for slot in plan.closed:
            self._close(slot)
        for opening in plan.opened:
            self._open(opening)
        # All reads come before all writes: a plan must not depend on the order of its slices.
        contexts = [self._read(piece) for piece in plan.slices]
        pieces = [self._drafted(piece, context) for piece, context in zip(plan.slices, contexts, strict=True)]
        self._late = {slot: steps - 1 for slot, steps in self._late.items() if steps > 1}
        results = tuple(
            [self._compute(piece, context) for piece, context in zip(pieces, contexts, strict=True)]
        )
        passes = tuple([DraftPass(1, 1e-3) for piece in plan.slices if piece.num_granted])
        return StepResult(results, tuple(self._late), passes)

    def lose_step(self, plan: StepPlan | None) -> None:
        """Simulate a step that failed before it began (None), or after it wrote garbage to its rows."""
        if plan is not None:
            self.execute(plan)
            for piece in plan.slices:
                self._spoil(piece, piece.start)
        self._uncertain.update(range(len(self.slots)))

    def _close(self, number: int) -> None:
        if not self.slots[number].is_open and number not in self._uncertain:
            raise PlanError(f"slot {number} is closed but was not open")
        self.slots[number].is_open = False
        self._late.pop(number, None)

    def _open(self, opening: SlotOpening) -> None:
        slot = self.slots[opening.slot]
        if slot.is_open and opening.slot not in self._uncertain:
            raise PlanError(f"slot {opening.slot} is opened but was not closed")
        self._uncertain.discard(opening.slot)
        self._late.pop(opening.slot, None)
        slot.open(opening)

    def _read(self, piece: SequenceSlice) -> int:
        """Update the block table, then read every row before the slice through it; return the context."""
        slot = self.slots[piece.slot]
        if not slot.is_open:
            raise PlanError(f"a slice for slot {piece.slot}, which is not open")
        if piece.slot in self._late:
            raise PlanError(f"a slice for slot {piece.slot}, whose grammar mask is late")
        table = slot.table
        if piece.block_ids or piece.table_from != len(table):
            if piece.table_from > len(table):
                raise PlanError(f"slot {piece.slot} has {len(table)} blocks, not {piece.table_from}")
            table[piece.table_from :] = piece.block_ids
        size, blocks = self.block_size, self.blocks
        end = piece.start + len(piece.token_ids) + piece.num_granted
        if not piece.token_ids or len(table) * size < end:
            raise PlanError(f"slot {piece.slot} has no tokens, or too few blocks for them")
        full, rest = divmod(piece.start, size)
        context = slot.start
        for block in table[:full]:
            context += sum(blocks[block])
        return context + sum(blocks[table[full]][:rest]) if rest else context

    def _drafted(self, piece: SequenceSlice, context: int) -> SequenceSlice:
        """Return the slice with drafts as from a draft model that is often right, and sometimes not ready."""
        if not piece.num_granted:
            return piece
        slot, drafted = self.slots[piece.slot], list[int]()
        for position, token in enumerate(piece.token_ids, piece.start):
            context += kv_row(context, token, position)
        for _ in range(self._rng.randint(0, piece.num_granted)):
            position = piece.start + piece.num_known + len(drafted)
            token = draw_token(
                context,
                seed=slot.seed,
                choice=slot.choice,
                position=position,
                tally=slot.tally + sum(drafted),
                mask=slot.matcher.masks_ahead(tuple(drafted))[-1],
                vocab=self.vocab,
            )
            if self._rng.random() < DRAFT_ERRORS:
                token = (token + 1) % self.vocab
            if token in slot.stop_ids:
                break
            drafted.append(token)
            context += kv_row(context, token, position)
        return piece.with_drafts(tuple(drafted))

    def _compute(self, piece: SequenceSlice, context: int) -> SliceResult:
        slot = self.slots[piece.slot]
        fails = piece.num_sampled > 0 and slot.fails_at == piece.start + piece.num_known
        if fails or slot.hints.poison == 1:
            self._spoil(piece, piece.start)
            return SliceResult(failure=POISONED, num_drafted=piece.num_drafted)
        contexts = self._write(piece, context)
        scores = tuple(
            [
                TokenLogprob(scored, logprob_of(after, scored))
                for scored, after in zip(piece.score_ids, contexts, strict=False)
            ]
        )
        if not piece.num_sampled:
            return SliceResult((), (), scores) if scores else NOTHING
        if self._rng.random() < self._late_rate:
            if steps := self._rng.randrange(4):  # 0: ready when the step ends
                self._late[piece.slot] = steps
            return SliceResult(prompt_logprobs=scores, is_late=True, num_drafted=piece.num_drafted)
        return self._answer(piece, contexts[piece.num_known - 1 :], scores)

    def _write(self, piece: SequenceSlice, context: int) -> list[int]:
        """Write the KV of the slice, drafts included. Return the context after each token."""
        size, blocks, table = self.block_size, self.blocks, self.slots[piece.slot].table
        contexts: list[int] = []
        for position, token in enumerate(piece.token_ids, piece.start):
            row = kv_row(context, token, position)
            blocks[table[position // size]][position % size] = row
            context += row
            contexts.append(context)
        return contexts

    def _answer(
        self, piece: SequenceSlice, contexts: list[int], scores: tuple[TokenLogprob, ...]
    ) -> SliceResult:
        """Return the accepted drafts, the token after them, and those that are then forced."""
        slot = self.slots[piece.slot]
        drawn = self._draw(piece, contexts)
        num_accepted = 0
        for draft, token in zip(piece.draft_ids, drawn[:-1], strict=False):
            if draft != token:
                break
            num_accepted += 1
        tokens = drawn[: num_accepted + 1]
        for token in tokens:
            slot.tally += token
            slot.matcher.consume(token)
        if slot.wants_logprobs:
            logprobs = [
                TokenLogprob(token, logprob_of(context, token))
                for token, context in zip(tokens, contexts, strict=False)
            ]
            return SliceResult(
                tuple(tokens),
                tuple(logprobs),
                scores,
                num_drafted=piece.num_drafted,
                num_accepted=num_accepted,
            )
        end = piece.start + piece.num_known + len(tokens)
        num_healthy = slot.fails_at - end if slot.fails_at >= 0 else MAX_FORCED
        forced = slot.matcher.forced(self.vocab, min(MAX_FORCED, num_healthy))
        slot.tally += sum(forced)
        return SliceResult(
            (*tokens, *forced), (), scores, num_drafted=piece.num_drafted, num_accepted=num_accepted
        )

    def _draw(self, piece: SequenceSlice, contexts: list[int]) -> list[int]:
        """Draw a token for each row, as if the drafts before the row were in the answer.

        The last rows are left out if their masks are late, or if they fail: then the next step fails.
        """
        slot = self.slots[piece.slot]
        drafted = piece.draft_ids
        position = piece.start + piece.num_known
        num_rows = len(contexts)
        if drafted and self._rng.random() < self._late_rate:
            num_rows = self._rng.randint(1, num_rows)
        if position < slot.fails_at < position + num_rows:
            num_rows = slot.fails_at - position
            self._spoil(piece, slot.fails_at - 1)
        masks = slot.matcher.masks_ahead(drafted)
        return [
            draw_token(
                contexts[number],
                seed=slot.seed,
                choice=slot.choice,
                position=position + number,
                tally=slot.tally + sum(drafted[:number]),
                mask=masks[number],
                vocab=self.vocab,
            )
            for number in range(num_rows)
        ]

    def _spoil(self, piece: SequenceSlice, start: int) -> None:
        """Overwrite the KV of a slice from position `start` on."""
        table, size = self.slots[piece.slot].table, self.block_size
        for position in range(start, piece.start + len(piece.token_ids)):
            self.blocks[table[position // size]][position % size] = -position
