"""A worker that executes a StepPlan exactly as a real runner must, but computes hashes instead of tensors."""

import random

from octavo.plan import SequenceSlice, SliceResult, SlotOpening, StepPlan, StepResult
from octavo.protocol import Failure, FailureCode, TokenLogprob
from octavo.simulate.fake_model import Hints, draw_token, empty_context, kv_row, logprob_of

NOTHING = SliceResult()
POISONED = Failure(FailureCode.ENGINE_FAILED, "poisoned")


class PlanError(Exception):
    """A plan that no worker could execute."""


class Slot:
    """The state of one sequence in a worker. `open` must reset all state of the previous owner."""

    __slots__ = (
        "choice",
        "hints",
        "is_open",
        "num_prompt",
        "seed",
        "start",
        "table",
        "tally",
        "wants_logprobs",
    )

    def __init__(self) -> None:
        self.is_open = False
        self.hints = Hints(0, 0)
        self.seed = self.start = self.choice = self.num_prompt = self.tally = 0
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
        self.num_prompt = opening.num_prompt
        self.wants_logprobs = opening.params.logprobs is not None
        self.tally = sum(opening.token_ids[opening.num_prompt :])
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
        self._late = {slot: steps - 1 for slot, steps in self._late.items() if steps > 1}
        results = tuple(
            [self._compute(piece, context) for piece, context in zip(plan.slices, contexts, strict=True)]
        )
        return StepResult(results, tuple(self._late))

    def lose_step(self, plan: StepPlan | None) -> None:
        """Simulate a step that failed before it began (None), or after it wrote garbage to its rows."""
        if plan is not None:
            self.execute(plan)
            for piece in plan.slices:
                self._spoil(self.slots[piece.slot], piece)
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
        if not piece.token_ids or len(table) * size < piece.start + len(piece.token_ids):
            raise PlanError(f"slot {piece.slot} has no tokens, or too few blocks for them")
        full, rest = divmod(piece.start, size)
        context = slot.start
        for block in table[:full]:
            context += sum(blocks[block])
        return context + sum(blocks[table[full]][:rest]) if rest else context

    def _compute(self, piece: SequenceSlice, context: int) -> SliceResult:
        slot = self.slots[piece.slot]
        size, blocks, table = self.block_size, self.blocks, slot.table
        end = piece.start + len(piece.token_ids)
        poison = slot.hints.poison
        if poison == 1 or (poison and piece.num_sampled and end == slot.num_prompt + poison - 2):
            self._spoil(slot, piece)
            return SliceResult(failure=POISONED)
        scores: list[TokenLogprob] = []
        score_ids = piece.score_ids
        for position, token in enumerate(piece.token_ids, piece.start):
            row = kv_row(context, token, position)
            blocks[table[position // size]][position % size] = row
            context += row
            if len(scores) < len(score_ids):
                scored = score_ids[len(scores)]
                scores.append(TokenLogprob(scored, logprob_of(context, scored)))
        if not piece.num_sampled:
            return SliceResult((), (), tuple(scores)) if scores else NOTHING
        if self._rng.random() < self._late_rate:
            if steps := self._rng.randrange(4):  # 0: ready when the step ends
                self._late[piece.slot] = steps
            return SliceResult(prompt_logprobs=tuple(scores), is_late=True)
        token = draw_token(
            context, seed=slot.seed, choice=slot.choice, position=end, tally=slot.tally, vocab=self.vocab
        )
        slot.tally += token
        logprobs = (TokenLogprob(token, logprob_of(context, token)),) if slot.wants_logprobs else ()
        return SliceResult((token,), logprobs, tuple(scores))

    def _spoil(self, slot: Slot, piece: SequenceSlice) -> None:
        for position in range(piece.start, piece.start + len(piece.token_ids)):
            self.blocks[slot.table[position // self.block_size]][position % self.block_size] = -position
