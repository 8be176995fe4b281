"""Views of the engine for those who watch it: made between steps, seldom enough to be cheap.

A front end takes a lease (`Watch`) and renews it while it has watchers of its own. Without a lease nothing is
recorded and nothing made: it costs one comparison a step.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.plan import SequenceSlice, StepPlan
from octavo.schedule import Scheduler
from octavo.schedule.sequence import Sequence
from octavo.view import (
    MOST_NODES,
    MOST_STEPS,
    MOST_WAITING,
    EngineView,
    SequenceView,
    StepView,
    TreeView,
    WaitingView,
    Watch,
)

REST = 100  # a view that took t seconds of work is followed by none for REST * t: 1 % of the time at most
LONGEST_LEASE = 10.0  # seconds, whatever is asked for


@dataclass(frozen=True)
class NotedStep:
    step: int
    began: float  # by the engine's clock
    seconds: float
    slices: tuple[SequenceSlice, ...]
    preempted: tuple[int, ...]


class StepLog:
    """The steps since the last view; of many, the last ones."""

    def __init__(self) -> None:
        self._steps: deque[NotedStep] = deque(maxlen=MOST_STEPS)
        self._num_noted = 0

    def note(self, plan: StepPlan, preempted: list[int], began: float, ended: float) -> None:
        self._steps.append(NotedStep(plan.step, began, ended - began, plan.slices, tuple(preempted)))
        self._num_noted += 1

    def take(self, since_1970: float) -> tuple[tuple[StepView, ...], int]:
        """The steps, and how many before them are left out. `since_1970` was the engine's clock's zero."""
        taken = tuple(
            [
                StepView(
                    noted.step,
                    since_1970 + noted.began,
                    noted.seconds,
                    tuple([(s.slot, s.start, len(s.token_ids), s.num_sampled) for s in noted.slices]),
                    noted.preempted,
                )
                for noted in self._steps
            ]
        )
        left_out = self._num_noted - len(taken)
        self._steps.clear()
        self._num_noted = 0
        return taken, left_out


def view_of(scheduler: Scheduler, log: StepLog | None, now: float) -> EngineView:
    """`now` is by the clock that requests' arrivals and steps were timed with."""
    unix = time.time()
    running, tree = scheduler.running(), scheduler.kv.tree
    steps, left_out = log.take(unix - now) if log is not None else ((), 0)
    live = [(sequence.slot, sequence.pages) for sequence in running if sequence.pages is not None]
    return EngineView(
        time=unix,
        stats=scheduler.stats(),
        pages=scheduler.kv.page_map(live),
        sequences=tuple([_sequence_view(sequence) for sequence in running]),
        waiting=tuple([_waiting_view(s, now) for s in scheduler.first_waiting(MOST_WAITING)]),
        tree=tree.outline(MOST_NODES) if tree else TreeView(),
        steps=steps,
        steps_left_out=left_out,
    )


def _sequence_view(sequence: Sequence) -> SequenceView:
    pages = sequence.pages
    assert pages is not None
    return SequenceView(
        slot=sequence.slot,
        request_id=sequence.request.request_id,
        choice=sequence.request.choice,
        num_prompt=sequence.num_prompt,
        num_tokens=len(sequence.token_ids),
        num_computed=sequence.num_computed,
        num_cached=sequence.num_cached,
        num_pages=len(pages.block_ids),
        num_shared_pages=pages.num_shared,
        preemptions=sequence.num_preemptions,
    )


def _waiting_view(sequence: Sequence, now: float) -> WaitingView:
    return WaitingView(
        request_id=sequence.request.request_id,
        choice=sequence.request.choice,
        num_prompt=sequence.num_prompt,
        num_tokens=len(sequence.token_ids),
        preemptions=sequence.num_preemptions,
        seconds_waiting=max(0.0, now - sequence.request.arrival),
    )


@dataclass(frozen=True)
class Lease:
    until: float
    interval: float


class Viewing:
    """Who watches, and when the next view is due. Owned by the engine's thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        # What a view costs is its own work: not the time in which another process had the core.
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._work = work
        self._leases: dict[bytes, Lease] = {}  # by front end
        self._last = -math.inf  # when a view was made for all who have a lease
        self._rests_until = -math.inf

    @property
    def is_open(self) -> bool:
        return bool(self._leases)

    def watch(self, owner: bytes, message: Watch) -> None:
        if not message.seconds > 0:
            self._leases.pop(owner, None)
            return
        if owner not in self._leases:
            self._last = -math.inf  # who comes new need not wait
        until = self._clock() + min(message.seconds, LONGEST_LEASE)
        self._leases[owner] = Lease(until, max(0.0, message.interval))

    def seconds_to_next(self) -> float:
        """Until `take_turn` has something to do."""
        if not self._leases:
            return math.inf
        return max(0.0, min(self._due, *[lease.until for lease in self._leases.values()]) - self._clock())

    def take_turn(self, show: Callable[[tuple[bytes, ...]], None]) -> None:
        """Between two steps: forget the leases that are over; if a view is due, `show` it to the others."""
        now = self._clock()
        self._leases = {owner: lease for owner, lease in self._leases.items() if lease.until > now}
        if not self._leases or now < self._due:
            return
        began = self._work()
        show(tuple(self._leases))
        self._last, self._rests_until = now, now + REST * (self._work() - began)

    @property
    def _due(self) -> float:
        """While there is a lease."""
        interval = min([lease.interval for lease in self._leases.values()])
        return max(self._last + interval, self._rests_until)
