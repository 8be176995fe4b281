"""The sequences of every tenant, and the order in which tenants are served.

Tenants are served in the order of (rank, tokens computed for them divided by their weight): the tenant that
has received least is first. Within a tenant, sequences are served in the order of their keys. The order of
tenants is fixed during a step, so everything behind the sequence that is being served is still unplanned.

A tenant's share of the slots is `max_running` in proportion to the weights of the tenants with unfinished
sequences. A waiting sequence may preempt running ones only behind it in the order:

- sequences of a higher rank,
- sequences of a tenant above its share, if its own tenant is below its share: afterwards the first is still
  not below its share and the second not above, so the two cannot preempt each other in turns. If its own
  tenant has a slot already, the other keeps one slot more than its share: slots change hands as sequences
  end, and preempting for the last one would only repeat work,
- sequences of the same tenant with a lower priority.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from octavo.fairness.accounts import Account, Accounts
from octavo.schedule.sequence import Sequence, TenantQueue, by_key

_used = attrgetter("account.used")
_rank = attrgetter("rank")


class TenantQueues:
    """Owned by the Scheduler."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._accounts = Accounts()
        self._queues: dict[tuple[int, str], TenantQueue] = {}  # with unfinished sequences
        self._order: list[TenantQueue] = []  # as of the last `sort`; newer queues at the end
        self._num_ranked = 0  # unfinished sequences with a rank other than 0
        self._num_several = 0  # tenants with at least two running sequences
        self.num_running = 0

    # -- sequences ----------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence. It waits in no queue yet."""
        request = sequence.request
        account = self._accounts.enter(request.tenant, request.weight)
        queue = self._queues.get((request.rank, request.tenant))
        if queue is None:
            queue = self._queues[request.rank, request.tenant] = TenantQueue(account, request.rank)
            self._order.append(queue)
        queue.num_unfinished += 1
        self._num_ranked += request.rank != 0
        sequence.queue = queue

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has finished."""
        queue, request = sequence.queue, sequence.request
        self._accounts.leave(queue.account)
        queue.num_unfinished -= 1
        self._num_ranked -= request.rank != 0
        if queue.num_unfinished == 0:
            del self._queues[request.rank, request.tenant]

    def start(self, sequence: Sequence) -> None:
        queue = sequence.queue
        insort(queue.running, sequence, key=by_key)
        queue.account.num_served += 1
        self._num_several += queue.account.num_served == 2
        self.num_running += 1

    def stop(self, sequence: Sequence) -> None:
        queue = sequence.queue
        del queue.running[queue.place_of(sequence)]
        self._num_several -= queue.account.num_served == 2
        queue.account.num_served -= 1
        self.num_running -= 1

    def charge(self, sequence: Sequence, start: int, end: int) -> None:
        """Charge the tenant for computed tokens, but not again for those computed before a preemption."""
        account, charged = sequence.queue.account, sequence.num_charged
        account.used += (end - (charged if charged > start else start)) / account.weight
        sequence.num_charged = end

    # -- order ----------------------------------------------------------------------------------------------

    def sort(self) -> list[TenantQueue]:
        """Fix the order of the next step and return the queues in it."""
        order = self._order
        if len(order) != len(self._queues):
            order = self._order = [queue for queue in order if queue.num_unfinished]
        if order:
            order.sort(key=_used)  # nearly sorted already; ties keep their order
            self._accounts.note_min(order[0].account.used)
            if self._num_ranked:
                order.sort(key=_rank)
        return order

    def in_order(self) -> list[TenantQueue]:
        """Return the queues in the order of the last step. Read-only."""
        return self._order

    def running(self) -> list[Sequence]:
        """Return the running sequences in serving order."""
        return list(chain.from_iterable([queue.running for queue in self._order if queue.running]))

    def last_running(self) -> Sequence:
        return next(queue.running[-1] for queue in reversed(self._order) if queue.running)

    # -- preemption for admission -------------------------------------------------------------------------

    def victims(self, head: Sequence) -> Iterator[Sequence]:
        """Yield the sequences that may be preempted to admit `head`, each as if the earlier ones were."""
        own = head.queue
        # A tenant above its share has at least two slots.
        takes_share = self._num_several > 0 and self._is_below_share(own.account)
        kept = 1 if own.account.num_served else 0
        num_taken: Counter[str] = Counter()
        for queue in reversed(self._order if takes_share or self._num_ranked else ()):
            if queue is own:
                break
            account, outranks = queue.account, queue.rank > own.rank
            if not outranks and (not takes_share or account.num_served < 2):
                continue
            for sequence in reversed(queue.running):
                if not outranks and not self._is_above_share(account, num_taken[account.name] + kept):
                    break
                num_taken[account.name] += 1
                yield sequence
        for sequence in reversed(own.running):
            if sequence.request.priority <= head.request.priority:
                break
            yield sequence

    def _is_below_share(self, account: Account) -> bool:
        """Return whether the tenant may have one more slot."""
        return account.num_served == 0 or account.num_served + 1 <= self._share(account)

    def _is_above_share(self, account: Account, num_others: int) -> bool:
        """Return whether it has its share, so at least one slot, without `num_others` and one more slot."""
        return account.num_served - num_others - 1 >= self._share(account)

    def _share(self, account: Account) -> float:
        return self._max_running * account.weight / self._accounts.total_weight
