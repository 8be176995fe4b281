"""What must hold for every plan, checked from the outside: from the plans and the tickets alone."""

from octavo.plan import StepPlan, StepResult
from octavo.schedule import Admission, SchedulerConfig
from octavo.simulate.ticket import Ticket, Violation


class PlanRules:
    """Follows plan after plan, and knows who runs in which slot."""

    def __init__(self, config: SchedulerConfig, page_size: int, prefix_caching: bool) -> None:
        self._config = config
        self._page_size = page_size
        self._prefix_caching = prefix_caching
        self.running: dict[int, Ticket] = {}  # by slot; ended ones until a plan closes their slot
        self._lost_slots: set[int] = set()
        self._late: set[int] = set()
        self.num_preemptions = 0
        self.num_tokens = 0

    def follow(self, plan: StepPlan, live: dict[tuple[int, int], Ticket], num_available: int) -> None:
        """`live` holds the unfinished tickets by seed and choice; `num_available` pages can be had now."""
        lacks_one = [
            t
            for slot, t in self.running.items()
            if t.finish is None and t.known - t.computed == 1 and slot not in self._late
        ]
        had_running = any(t.finish is None for t in self.running.values())
        preempted = self._close(plan)
        opened = self._open(plan, live)
        served = self._serve(plan)
        if not served and live and not self._late & self.running.keys():
            raise Violation("a step without progress")
        if opened:
            if had_running and self._config.admission is Admission.STATIC:
                raise Violation("static admission let a sequence join a running batch")
            self._check_admission_order(opened, live)
            if not preempted:
                self._check_room(plan, opened[-1], num_available)
        if preempted:
            self._check_victims(preempted, opened)
        if len(lacks_one) < self._config.max_step_tokens:
            self._check_readers(lacks_one, served, num_available)

    def note_late(self, plan: StepPlan, result: StepResult) -> None:
        """Who is late computes its last token again, and not before the worker is ready for it."""
        self._late = set(result.late)
        for piece, outcome in zip(plan.slices, result.slices, strict=True):
            if outcome.is_late:
                ticket = self.running[piece.slot]
                ticket.computed -= 1
                ticket.num_prompt_computed -= ticket.computed < ticket.num_prompt

    def lose_step(self, plan: StepPlan) -> None:
        """All that ran must start over, and the next plan must close what the lost one closed or used."""
        self._lost_slots.update(plan.closed, self.running)
        self._late.clear()
        for ticket in self.running.values():
            self._preempt(ticket)
        self.running.clear()

    def _preempt(self, ticket: Ticket) -> None:
        ticket.slot, ticket.computed = -1, 0
        ticket.num_preemptions += 1
        self.num_preemptions += 1

    def _close(self, plan: StepPlan) -> dict[int, Ticket]:
        """The preempted tickets, by the slot they had."""
        running = self.running
        preempted = {}
        for slot in plan.closed:
            if slot in self._lost_slots:
                self._lost_slots.remove(slot)
                continue
            ticket = running.pop(slot, None)
            if ticket is None:
                raise Violation(f"slot {slot} was closed but not open")
            if ticket.finish is None:
                self._preempt(ticket)
                preempted[slot] = ticket
        if self._lost_slots:
            raise Violation(f"slots {self._lost_slots} were lost and not closed")
        for ticket in running.values():
            if ticket.finish is not None:
                raise Violation(f"{ticket} ended, but its slot was not closed")
        return preempted

    def _open(self, plan: StepPlan, live: dict[tuple[int, int], Ticket]) -> list[Ticket]:
        opened = []
        for opening in plan.opened:
            seed = opening.params.seed
            assert seed is not None
            ticket = live.get((seed, opening.choice))
            if ticket is None or ticket.slot != -1 or opening.slot in self.running:
                raise Violation(f"slot {opening.slot} was opened for {ticket}, which ended or runs elsewhere")
            ticket.slot = opening.slot
            self.running[opening.slot] = ticket
            opened.append(ticket)
        if len(self.running) > self._config.max_running:
            raise Violation("more sequences run than may")
        return opened

    def _serve(self, plan: StepPlan) -> set[int]:
        """The slots served. Slices come in the order of service, continue where the last one ended, and
        skip tokens only in whole cached pages."""
        budget = self._config.max_step_tokens
        served: set[int] = set()
        last_key = (-1, -1)
        for piece in plan.slices:
            ticket = self.running.get(piece.slot)
            if ticket is None or ticket.key <= last_key:
                raise Violation(f"{ticket} was served out of order, or twice")
            last_key = ticket.key
            start, count = piece.start, len(piece.token_ids)
            if start != ticket.computed and (
                start < ticket.computed or start % self._page_size or not self._prefix_caching
            ):
                raise Violation(f"{ticket} computed {ticket.computed} tokens and was continued at {start}")
            end = ticket.computed = start + count
            if count < 1 or end > ticket.known or piece.num_sampled != (end == ticket.known):
                raise Violation(f"{ticket} has {ticket.known} tokens; the slice ends at {end}")
            if start < ticket.num_prompt:
                ticket.num_prompt_computed += min(end, ticket.num_prompt) - start
            served.add(piece.slot)
            budget -= count
            self.num_tokens += count
        if budget < 0:
            raise Violation("the step's token budget was exceeded")
        return served

    def _check_admission_order(self, opened: list[Ticket], live: dict[tuple[int, int], Ticket]) -> None:
        last = max(ticket.key for ticket in opened)
        for ticket in live.values():
            if ticket.slot == -1 and ticket.key < last and not ticket.is_parked:
                raise Violation(f"{ticket} was overtaken in the queue")

    def _check_victims(self, preempted: dict[int, Ticket], opened: list[Ticket]) -> None:
        first_victim = min(ticket.key for ticket in preempted.values())
        for ticket in self.running.values():
            if ticket.key > first_victim:
                raise Violation(f"{ticket} runs on although one before it in the order was preempted")
        for ticket in opened:
            # A slot that is taken and given in one plan was taken for its new owner.
            victim = preempted.get(ticket.slot)
            if victim is not None and victim.request.priority <= ticket.request.priority:
                raise Violation(f"{victim} was preempted for {ticket}, which is not more urgent")

    def _check_readers(self, lacks_one: list[Ticket], served: set[int], num_available: int) -> None:
        """Who lacks one token is sure of it; only the last in the order may find no page for it."""
        unserved = [t for t in lacks_one if t.finish is None and t.slot != -1 and t.slot not in served]
        for ticket in unserved:
            is_last = all(ticket.key >= other.key for other in self.running.values())
            lacks_page = num_available == 0 and ticket.computed % self._page_size == 0
            if not (is_last and lacks_page):
                raise Violation(f"{ticket} lacks one token and was passed over")

    def _check_room(self, plan: StepPlan, last: Ticket, num_available: int) -> None:
        """The last one admitted found room for all its tokens, and a page to spare for each running one."""
        position = next((i for i, piece in enumerate(plan.slices) if piece.slot == last.slot), None)
        num_others = len(self.running) - 1
        if position is None or num_others == 0:
            return
        shared = plan.slices[position].start // self._page_size
        given_since = sum(len(piece.block_ids) for piece in plan.slices[position:]) - shared
        wanted = -(-last.known // self._page_size) - shared
        if num_available + given_since < wanted + num_others:
            raise Violation(f"{last} was admitted without a page to spare for each running sequence")
