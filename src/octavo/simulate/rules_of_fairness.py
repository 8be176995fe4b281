"""Invariants of the order of tenants, checked from outside: from the plans and the requests alone.

The rules keep their own accounts. Weights and token counts are exact in binary, so these accounts must equal
those of the scheduler bit for bit. The order of two tenants with equal accounts is not prescribed.
"""

from collections.abc import Sequence

from octavo.plan import StepPlan
from octavo.schedule import SchedulerConfig
from octavo.simulate.tracked_request import TrackedRequest, Violation

Live = dict[tuple[int, int], TrackedRequest]


class FairnessRules:
    """The accounts of the tenants of one engine. Owned by `PlanRules`."""

    def __init__(self, config: SchedulerConfig, block_size: int) -> None:
        self._config = config
        self._block_size = block_size
        self._used: dict[str, float] = {}  # tokens divided by weight, by tenant
        self._floor = 0.0
        self._weights: dict[str, float] = {}  # of tenants with unfinished requests
        self._were_running: Sequence[TrackedRequest] = ()  # before the step

    def begin_step(self, live: Live, were_running: Sequence[TrackedRequest]) -> None:
        self._were_running = were_running
        self._weights = {t.request.tenant: t.request.weight for t in live.values()}
        for tenant in self._weights:
            self._used[tenant] = max(self._used.get(tenant, 0.0), self._floor)
        self._floor = max(self._floor, min((self._used[tenant] for tenant in self._weights), default=0.0))

    def charge(self, tracked: TrackedRequest, start: int, end: int) -> None:
        """Record a computed slice. Tokens that are computed again count only once."""
        num_new = max(0, end - max(start, tracked.num_charged))
        self._used[tracked.request.tenant] += num_new / tracked.request.weight
        tracked.num_charged = max(tracked.num_charged, end)

    def is_behind(self, one: TrackedRequest, other: TrackedRequest) -> bool:
        """Return whether `one` is certainly served after `other`."""
        if one.queue == other.queue:
            return one.key > other.key
        return self._place(one) > self._place(other)

    # -- checks of a plan ---------------------------------------------------------------------------------

    def check_serving_order(self, served: Sequence[TrackedRequest | None]) -> None:
        """Check that tenants are served one after the other, in order, and requests within each by key."""
        last: TrackedRequest | None = None
        begun: set[tuple[int, str]] = set()
        for tracked in served:
            if tracked is None:
                raise Violation("a slot without a request was scheduled")
            if last is not None and last.queue == tracked.queue:
                if tracked.key <= last.key:
                    raise Violation(f"{tracked} was scheduled out of order or twice")
            elif tracked.queue in begun or (last is not None and self.is_behind(last, tracked)):
                raise Violation(f"{tracked} was scheduled after {last}, whose tenant has received more")
            begun.add(tracked.queue)
            last = tracked

    def check_admission_order(self, opened: Sequence[TrackedRequest], live: Live) -> None:
        for tracked in live.values():
            if tracked.slot == -1 and not tracked.is_parked:
                overtaker = next((other for other in opened if self.is_behind(other, tracked)), None)
                if overtaker is not None:
                    raise Violation(f"{tracked} was overtaken in the queue by {overtaker}")

    def check_victims(
        self,
        victims: Sequence[TrackedRequest],
        running: Sequence[TrackedRequest],
        opened: Sequence[TrackedRequest],
        live: Live,
    ) -> None:
        """Check that each victim was the last in the order, or that a request had the right to its slot.

        After a preemption nothing more is admitted. So this request is the last that was admitted, or the
        first that still waits: its prompt may not fit even then.
        """
        waiting = [
            t for t in live.values() if t.slot == -1 and not t.is_parked and t not in self._were_running
        ]
        heads = [
            *opened[-1:],
            *(t for t in waiting if not any(self.is_behind(t, other) for other in waiting)),
        ]
        for number, victim in enumerate(victims):
            is_last = not any(self.is_behind(other, victim) for other in running)
            # Those that run when it is preempted. A tenant that has given up its only slot may take another.
            then = [t for t in (*self._were_running, *opened) if t not in victims[:number]]
            if not is_last and not any(
                self._may_preempt(head, victim, [t for t in then if t is not head]) for head in heads
            ):
                raise Violation(f"{victim} was preempted although others run behind it in the order")
            for other in running:
                if other.queue == victim.queue and other.key > victim.key and other in self._were_running:
                    raise Violation(f"{victim} was preempted before {other}, which is behind it")

    def check_turn(
        self, plan: StepPlan, running: Sequence[TrackedRequest], live: Live, num_available: int
    ) -> None:
        """Check that the first tenant's first waiting request was admitted if there was room for it.

        Called for plans without preemptions. Room is a free slot, or one that it may take from others.
        """
        num_planned = sum(piece.num_known for piece in plan.slices)
        waiting = [t for t in live.values() if t.slot == -1 and not t.is_parked]
        if not waiting or num_planned >= self._config.max_step_tokens:
            return
        head = min(waiting, key=lambda t: (self._place(t), t.key))
        if any(t.queue != head.queue and self._place(t) <= self._place(head) for t in live.values()):
            return
        if num_available < -(-head.num_known // self._block_size) + len(running):
            return
        if len(running) < self._config.max_running:
            raise Violation(f"{head} is first in the order and there is room, but it was not admitted")
        victim = next((t for t in running if self._may_preempt(head, t, running)), None)
        if victim is not None:
            raise Violation(f"{head} is first in the order, but {victim} was not preempted for it")

    # -- shares -------------------------------------------------------------------------------------------

    def _place(self, tracked: TrackedRequest) -> tuple[int, float]:
        return tracked.request.rank, self._used[tracked.request.tenant]

    def _share(self, tenant: str) -> float:
        return self._config.max_running * self._weights[tenant] / sum(self._weights.values())

    def _may_preempt(
        self, head: TrackedRequest, victim: TrackedRequest, running: Sequence[TrackedRequest]
    ) -> bool:
        """Return whether `victim` may be preempted to admit `head` while `running` are running."""
        if head.queue == victim.queue:
            return victim.request.priority > head.request.priority
        if victim.request.rank != head.request.rank:
            return victim.request.rank > head.request.rank
        if self._place(victim) < self._place(head):
            return False
        own = sum(t.request.tenant == head.request.tenant for t in running)
        # Those behind the victim are preempted first.
        tenant = victim.request.tenant
        kept = [
            t
            for t in running
            if t.request.tenant == tenant and (t.queue != victim.queue or t.key < victim.key)
        ]
        is_below = own == 0 or own + 1 <= self._share(head.request.tenant)
        return is_below and len(kept) >= max(1.0, self._share(tenant) + (own > 0))
