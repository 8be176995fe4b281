"""Invariants of drafts in plans: they use only what the step leaves, and none can be the end of an answer."""

from octavo.plan import SequenceSlice, StepPlan
from octavo.schedule import DraftPolicy, SchedulerConfig
from octavo.simulate.tracked_request import TrackedRequest, Violation


class DraftRules:
    """Owned by `PlanRules`, which checks that drafts follow the last known token and fit into the budget."""

    def __init__(self, config: SchedulerConfig, block_size: int, speculates: bool) -> None:
        self._config = config
        self._block_size = block_size
        self._speculates = speculates

    def check(self, plan: StepPlan, running: dict[int, TrackedRequest], num_available: int) -> int:
        """Check a plan; return how many blocks its drafts took.

        `num_available` blocks are left after it. While sequences run, drafts must leave one block for each.
        """
        has_prompt = False
        num_drafted = num_blocks = 0
        for piece in plan.slices:
            tracked = running[piece.slot]
            has_prompt |= piece.start < tracked.num_prompt
            num_of_slice = piece.num_drafted + piece.num_granted
            num_drafted += num_of_slice
            num_blocks += self._new_blocks(tracked, piece)
            if num_of_slice:
                self._check_slice(tracked, piece, num_of_slice)
        if num_drafted and has_prompt and self._config.draft_policy is DraftPolicy.WORTH:
            raise Violation("a step that computes a prompt has drafts, which slow it down")
        if num_blocks and num_available < len(running):
            raise Violation(f"drafts took {num_blocks} blocks and left {num_available} for {len(running)}")
        return num_blocks

    def _new_blocks(self, tracked: TrackedRequest, piece: SequenceSlice) -> int:
        """Return how many blocks the sequence has only because of the drafts of this slice."""
        num_needed = -(-(piece.start + piece.num_known) // self._block_size)
        num_before = max(tracked.num_blocks, num_needed)
        tracked.num_blocks = piece.table_from + len(piece.block_ids)
        return tracked.num_blocks - num_before

    def _check_slice(self, tracked: TrackedRequest, piece: SequenceSlice, num_drafted: int) -> None:
        if piece.num_granted and piece.num_drafted:
            raise Violation(f"{tracked} has drafts of a model beside others")
        if piece.num_granted and piece.start + piece.num_known + num_drafted > self._config.draft_context:
            raise Violation(f"{tracked} has {num_drafted} drafts of a model that cannot see so many tokens")
        if not self._speculates or num_drafted > self._config.max_draft_tokens:
            raise Violation(f"{tracked} has {num_drafted} drafts, more than the settings allow")
        if piece.start < tracked.num_prompt:
            raise Violation(f"{tracked} computes its prompt, but has drafts")
        if piece.start + piece.num_known + num_drafted >= tracked.stop_length:
            raise Violation(f"{tracked} has {num_drafted} drafts: the last can only be after the end")
        if not set(piece.draft_ids).isdisjoint(tracked.request.stop_ids):
            raise Violation(f"{tracked} has the drafts {piece.draft_ids}, and a token that may end it")
