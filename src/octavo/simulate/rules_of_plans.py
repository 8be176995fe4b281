"""Invariants of every plan, checked from outside: from the plans and the requests alone."""

from octavo.plan import StepPlan, StepResult
from octavo.schedule import AdmissionPolicy, SchedulerConfig
from octavo.simulate.rules_of_drafts import DraftRules
from octavo.simulate.rules_of_fairness import FairnessRules
from octavo.simulate.tracked_request import TrackedRequest, Violation


class PlanRules:
    """Checks plan after plan and tracks which request runs in which slot."""

    def __init__(
        self, config: SchedulerConfig, block_size: int, *, prefix_caching: bool, speculates: bool
    ) -> None:
        self._config = config
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self.running: dict[int, TrackedRequest] = {}  # by slot, until a plan closes the slot
        self._fairness = FairnessRules(config, block_size)
        self._drafts = DraftRules(config, block_size, speculates)
        self._lost_slots: set[int] = set()
        self._late: set[int] = set()
        self.num_preemptions = 0
        self.num_tokens = 0
        self.num_drafted = 0
        self.num_accepted = 0

    def follow(self, plan: StepPlan, live: dict[tuple[int, int], TrackedRequest], num_available: int) -> None:
        """Check a plan.

        `live` contains the unfinished requests by seed and choice; `num_available` is the number of blocks
        that are available now.
        """
        decoding = [
            t
            for slot, t in self.running.items()
            if t.finish is None and t.num_known - t.num_computed == 1 and slot not in self._late
        ]
        were_running = [t for t in self.running.values() if t.finish is None]
        self._fairness.begin_step(live, were_running)
        preempted = self._close(plan)
        opened = self._open(plan, live)
        served = self._serve(plan)
        num_before_drafts = num_available + self._drafts.check(plan, self.running, num_available)
        if not served and live and not self._late & self.running.keys():
            raise Violation("a step made no progress")
        if opened:
            if were_running and self._config.admission is AdmissionPolicy.STATIC:
                raise Violation("static admission added a sequence to a running batch")
            self._fairness.check_admission_order(opened, live)
            if not preempted:
                self._check_room(plan, opened[-1], num_before_drafts)
        if preempted:
            self._fairness.check_victims(list(preempted.values()), list(self.running.values()), opened, live)
        elif self._config.admission is AdmissionPolicy.CONTINUOUS:
            self._fairness.check_turn(plan, list(self.running.values()), live, num_before_drafts)
        if len(decoding) < self._config.max_step_tokens:
            self._check_decoding(decoding, served, num_available)

    def note_results(self, plan: StepPlan, result: StepResult) -> None:
        """Record accepted drafts and late slices.

        A late slice must recompute its last known token, but only when the worker is ready.
        """
        self._late = set(result.late)
        for piece, outcome in zip(plan.slices, result.slices, strict=True):
            self.num_tokens += outcome.num_drafted
            if outcome.failure is not None:
                continue
            tracked = self.running[piece.slot]
            self.num_drafted += outcome.num_drafted
            self.num_accepted += outcome.num_accepted
            tracked.num_drafted += outcome.num_drafted
            tracked.num_accepted += outcome.num_accepted
            tracked.num_computed += outcome.num_accepted - outcome.is_late
            tracked.num_prompt_computed -= outcome.is_late and tracked.num_computed < tracked.num_prompt
            self._fairness.charge(tracked, piece.start, tracked.num_computed)

    def lose_step(self, plan: StepPlan) -> None:
        """Record a lost step.

        All running requests must start over, and the next plan must close all slots that this one closed or
        used.
        """
        self._lost_slots.update(plan.closed, self.running)
        self._late.clear()
        for tracked in self.running.values():
            self._preempt(tracked)
        self.running.clear()

    def _preempt(self, tracked: TrackedRequest) -> None:
        tracked.slot, tracked.num_computed, tracked.num_blocks = -1, 0, 0
        tracked.num_preemptions += 1
        self.num_preemptions += 1

    def _close(self, plan: StepPlan) -> dict[int, TrackedRequest]:
        """Check closed slots; return the preempted requests by their previous slot."""
        running = self.running
        preempted = {}
        for slot in plan.closed:
            if slot in self._lost_slots:
                self._lost_slots.remove(slot)
                continue
            tracked = running.pop(slot, None)
            if tracked is None:
                raise Violation(f"slot {slot} was closed but was not open")
            if tracked.finish is None:
                self._preempt(tracked)
                preempted[slot] = tracked
        if self._lost_slots:
            raise Violation(f"slots {self._lost_slots} of a lost step were not closed")
        for tracked in running.values():
            if tracked.finish is not None:
                raise Violation(f"{tracked} ended, but its slot was not closed")
        return preempted

    def _open(self, plan: StepPlan, live: dict[tuple[int, int], TrackedRequest]) -> list[TrackedRequest]:
        opened = []
        for opening in plan.opened:
            seed = opening.params.seed
            assert seed is not None
            tracked = live.get((seed, opening.choice))
            if tracked is None or tracked.slot != -1 or opening.slot in self.running:
                raise Violation(
                    f"slot {opening.slot} was opened for {tracked}, which ended or runs elsewhere"
                )
            tracked.slot = opening.slot
            self.running[opening.slot] = tracked
            opened.append(tracked)
        if len(self.running) > self._config.max_running:
            raise Violation("more than max_running sequences run")
        return opened

    def _serve(self, plan: StepPlan) -> set[int]:
        """Check slices; return their slots.

        Slices must be in scheduling order, continue where the previous slice of the request ended, and skip
        tokens only as whole cached blocks.
        """
        budget = self._config.max_step_tokens
        served: set[int] = set()
        self._fairness.check_serving_order([self.running.get(piece.slot) for piece in plan.slices])
        for piece in plan.slices:
            tracked = self.running.get(piece.slot)
            assert tracked is not None, "checked by the serving order"
            start, count = piece.start, piece.num_known
            if start != tracked.num_computed and (
                start < tracked.num_computed or start % self._block_size or not self._prefix_caching
            ):
                raise Violation(f"{tracked} computed {tracked.num_computed} tokens, but continues at {start}")
            end = tracked.num_computed = start + count
            num_sampled = 1 + piece.num_drafted if end == tracked.num_known else 0
            if count < 1 or end > tracked.num_known or piece.num_sampled != num_sampled:
                raise Violation(f"{tracked} has {tracked.num_known} tokens; the slice ends at {end}")
            if start < tracked.num_prompt:
                tracked.num_prompt_computed += min(end, tracked.num_prompt) - start
            served.add(piece.slot)
            budget -= len(piece.token_ids) + piece.num_granted
            self.num_tokens += piece.num_known
        if budget < 0:
            raise Violation("the step's token budget was exceeded")
        return served

    def _check_decoding(self, decoding: list[TrackedRequest], served: set[int], num_available: int) -> None:
        """Check that each sequence that needs one token got it.

        Only the last one in the order may lack a block for it.
        """
        unserved = [t for t in decoding if t.finish is None and t.slot != -1 and t.slot not in served]
        for tracked in unserved:
            is_last = not any(self._fairness.is_behind(other, tracked) for other in self.running.values())
            lacks_block = num_available == 0 and tracked.num_computed % self._block_size == 0
            if not (is_last and lacks_block):
                raise Violation(f"{tracked} needs one token but was not scheduled")

    def _check_room(self, plan: StepPlan, last: TrackedRequest, num_available: int) -> None:
        """Check that the last admission left room for all its tokens and one block per running sequence."""
        position = next((i for i, piece in enumerate(plan.slices) if piece.slot == last.slot), None)
        num_others = len(self.running) - 1
        if position is None or num_others == 0:
            return
        shared = plan.slices[position].start // self._block_size
        allocated_since = sum(len(piece.block_ids) for piece in plan.slices[position:]) - shared
        # Plans do not show the cached blocks that a sequence took over if the budget then had nothing for it.
        served = {piece.slot for piece in plan.slices}
        unserved = [t for slot, t in self.running.items() if slot not in served and self._prefix_caching]
        adopted = sum(max(0, (t.num_known - 1) // self._block_size - t.num_blocks) for t in unserved)
        needed = -(-last.num_known // self._block_size) - shared
        if num_available + allocated_since + adopted < needed + num_others:
            raise Violation(f"{last} was admitted without a spare block for each running sequence")
