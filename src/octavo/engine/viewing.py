"""What a view of the engine shows, read from the scheduler and the cache between two steps.

Nothing here changes what it reads. A view walks neither the whole queue nor the whole prefix tree: it costs
time in proportion to the pages, the running sequences and what it shows. `view_leases` says when one is made.
"""

import heapq
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from octavo.cache import KVManager, Pages
from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree
from octavo.plan import SequenceSlice, StepPlan
from octavo.schedule import Scheduler
from octavo.schedule.lazy_heap import Entry
from octavo.schedule.sequence import Sequence, Status
from octavo.view import (
    CACHED_HELD,
    CACHED_IDLE,
    FREE,
    MOST_NODES,
    MOST_STEPS,
    MOST_WAITING,
    EngineView,
    NodeView,
    PageRuns,
    SequenceView,
    StepView,
    TreeView,
    WaitingView,
)


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
        pages=page_map(scheduler.kv, live),
        sequences=tuple([_sequence_view(sequence) for sequence in running]),
        waiting=tuple([_waiting_view(s, now) for s in first_waiting(scheduler, MOST_WAITING)]),
        tree=outline(tree, MOST_NODES) if tree else TreeView(),
        steps=steps,
        steps_left_out=left_out,
    )


def page_map(kv: KVManager, live: Iterable[tuple[int, Pages]]) -> PageRuns:
    """What every page is; `live` are the page tables of running sequences, by slot.

    Pages that are neither free nor under a sequence are idle in the tree, so the tree is not walked.
    """
    codes = np.full(kv.pool.num_total, CACHED_IDLE, np.int32)
    codes[np.frombuffer(kv.pool.free_ids(), np.int32)] = FREE
    held: list[int] = []
    private: list[int] = []
    slots: list[int] = []
    counts: list[int] = []
    seen: set[Node] = set()
    for slot, pages in live:
        own = pages.block_ids[pages.num_shared :]
        private += own
        slots.append(slot)
        counts.append(len(own))
        node = pages.node
        while node is not None and node not in seen:
            seen.add(node)
            held += node.blocks
            node = node.parent
    codes[np.array(held, np.int32)] = CACHED_HELD
    codes[np.array(private, np.int32)] = np.repeat(np.array(slots, np.int32), counts)
    starts = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))
    lengths = np.diff(starts, append=len(codes))
    return tuple(zip(codes[starts].tolist(), lengths.tolist(), strict=True))


def outline(tree: RadixTree, limit: int) -> TreeView:
    """The nodes nearest to the roots, at most `limit`; visits no more nodes than these, and the roots."""
    found: list[tuple[Node, int | None, int]] = []
    for salt, root in enumerate(tree.roots):
        found += [(child, None, salt) for child in islice(root.children.values(), limit - len(found))]
        if len(found) == limit:
            break
    for node, _, salt in found:  # which grows meanwhile: level by level
        children = islice(node.children.values(), limit - len(found))
        found += [(child, node.blocks[0], salt) for child in children]
    views = [
        NodeView(
            id=node.blocks[0],
            parent=parent,
            num_pages=len(node.blocks),
            num_tokens=len(node.tokens) // TOKEN_BYTES,
            holders=node.refs,
            salt=salt,
        )
        for node, parent, salt in found
    ]
    return TreeView(tuple(views), tree.num_nodes - len(views))


def first_waiting(scheduler: Scheduler, limit: int) -> list[Sequence]:
    """In the order they are served, including those that wait for another choice's prompt."""
    queued = first_queued(scheduler.queued(), limit)
    parked = [other for leader in (*scheduler.running(), *queued) for other in leader.followers]
    waiting = {other.key: other for other in (*queued, *parked) if other.status is Status.WAITING}
    return [waiting[key] for key in sorted(waiting)[:limit]]


def first_queued(heap: list[Entry], limit: int) -> list[Sequence]:
    """The next of a queue, in order. Pops nothing, and looks at few more entries than it finds."""
    found: list[Sequence] = []
    front = [(heap[0], 0)] if heap else []
    while front and len(found) < limit:
        entry, at = heapq.heappop(front)
        if entry[2].status is Status.WAITING:
            found.append(entry[2])
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(front, (heap[child], child))
    return found


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
