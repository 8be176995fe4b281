"""Build views of the engine from the state of scheduler and cache between two steps.

Reading changes nothing. A view walks neither the whole queue nor the whole prefix tree: its cost is
proportional to the blocks, the running sequences and what it shows. `view_leases` decides when one is made.
"""

import heapq
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from octavo.cache import BlockTable, KVManager
from octavo.cache.radix import TOKEN_BYTES, Node, RadixTree
from octavo.lazy_heap import Entry
from octavo.plan import SequenceSlice, StepPlan, StepResult
from octavo.schedule import Scheduler
from octavo.schedule.sequence import Sequence, SequenceStatus
from octavo.view import (
    CACHED_HELD,
    CACHED_IDLE,
    FREE,
    MAX_NODES,
    MAX_STEPS,
    MAX_WAITING,
    BlockRuns,
    EngineView,
    NodeView,
    SequenceView,
    StepView,
    TreeView,
    WaitingView,
)


@dataclass(frozen=True)
class RecordedStep:
    step: int
    began: float  # by the engine's clock
    seconds: float
    slices: tuple[SequenceSlice, ...]
    drafts: tuple[tuple[int, int], ...]  # of each slice: how many, and how many of these were accepted
    preempted: tuple[int, ...]


class StepLog:
    """The steps since the last view, at most the last MAX_STEPS."""

    def __init__(self) -> None:
        self._steps: deque[RecordedStep] = deque(maxlen=MAX_STEPS)
        self._num_recorded = 0

    def note(
        self, plan: StepPlan, result: StepResult, preempted: list[int], began: float, ended: float
    ) -> None:
        drafts = tuple([(one.num_drafted, one.num_accepted) for one in result.slices])
        self._steps.append(
            RecordedStep(plan.step, began, ended - began, plan.slices, drafts, tuple(preempted))
        )
        self._num_recorded += 1

    def take(self, since_1970: float) -> tuple[tuple[StepView, ...], int]:
        """Remove and return the steps, and how many before them were dropped.

        `since_1970` is the Unix time at which the engine's clock was zero.
        """
        taken = tuple(
            [
                StepView(
                    recorded.step,
                    since_1970 + recorded.began,
                    recorded.seconds,
                    _slices(recorded),
                    recorded.preempted,
                    _drafts(recorded),
                )
                for recorded in self._steps
            ]
        )
        left_out = self._num_recorded - len(taken)
        self._steps.clear()
        self._num_recorded = 0
        return taken, left_out


def _slices(recorded: RecordedStep) -> tuple[tuple[int, int, int, int], ...]:
    """Return slot, start, number of tokens and number of sampled rows of each slice, drafts included."""
    return tuple(
        [
            (one.slot, one.start, one.num_known + num_drafted, num_drafted + min(1, one.num_sampled))
            for one, (num_drafted, _) in zip(recorded.slices, recorded.drafts, strict=True)
        ]
    )


def _drafts(recorded: RecordedStep) -> tuple[tuple[int, int, int], ...]:
    pairs = zip(recorded.slices, recorded.drafts, strict=True)
    return tuple([(one.slot, drafted, accepted) for one, (drafted, accepted) in pairs if drafted])


def view_of(scheduler: Scheduler, log: StepLog | None, now: float) -> EngineView:
    """Return a view of the engine. `now` is from the clock that timed arrivals and steps."""
    unix = time.time()
    running, tree = scheduler.running(), scheduler.kv.tree
    steps, left_out = log.take(unix - now) if log is not None else ((), 0)
    live = [(sequence.slot, sequence.block_table) for sequence in running if sequence.block_table is not None]
    return EngineView(
        time=unix,
        stats=scheduler.stats(),
        blocks=block_map(scheduler.kv, live),
        sequences=tuple([_sequence_view(sequence) for sequence in running]),
        waiting=tuple([_waiting_view(s, now) for s in first_waiting(scheduler, MAX_WAITING)]),
        tree=outline(tree, MAX_NODES) if tree else TreeView(),
        steps=steps,
        steps_left_out=left_out,
    )


def block_map(kv: KVManager, live: Iterable[tuple[int, BlockTable]]) -> BlockRuns:
    """Return the state of every block. `live` has the slots and block tables of running sequences.

    Blocks that are neither free nor used by a sequence are idle in the tree, so the tree is not walked.
    """
    codes = np.full(kv.pool.num_total, CACHED_IDLE, np.int32)
    codes[np.frombuffer(kv.pool.free_ids(), np.int32)] = FREE
    held: list[int] = []
    private: list[int] = []
    slots: list[int] = []
    counts: list[int] = []
    seen: set[Node] = set()
    for slot, table in live:
        own = table.block_ids[table.num_shared :]
        private += own
        slots.append(slot)
        counts.append(len(own))
        node = table.node
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
    """Return the nodes nearest to the roots, at most `limit`. Visits only these nodes and the roots."""
    found: list[tuple[Node, int | None, int]] = []
    for salt, root in enumerate(tree.roots):
        found += [(child, None, salt) for child in islice(root.children.values(), limit - len(found))]
        if len(found) == limit:
            break
    for node, _, salt in found:  # the list grows meanwhile, level by level
        children = islice(node.children.values(), limit - len(found))
        found += [(child, node.blocks[0], salt) for child in children]
    views = [
        NodeView(
            id=node.blocks[0],
            parent=parent,
            num_blocks=len(node.blocks),
            num_tokens=len(node.tokens) // TOKEN_BYTES,
            holders=node.refs,
            salt=salt,
        )
        for node, parent, salt in found
    ]
    return TreeView(tuple(views), tree.num_nodes - len(views))


def first_waiting(scheduler: Scheduler, limit: int) -> list[Sequence]:
    """Return waiting sequences in serving order, including those that wait for another choice's prompt."""
    found: list[Sequence] = []
    for queue in scheduler.queues():
        queued = first_queued(queue.waiting.entries, limit - len(found))
        parked = [other for leader in (*queue.running, *queued) for other in leader.followers]
        waiting = {other.key: other for other in (*queued, *parked) if other.status is SequenceStatus.WAITING}
        found += [waiting[key] for key in sorted(waiting)]
        if len(found) >= limit:
            break
    return found[:limit]


def first_queued(heap: list[Entry[Sequence]], limit: int) -> list[Sequence]:
    """Return the first sequences of a heap, in order. Pops nothing and visits few other entries."""
    found: list[Sequence] = []
    front = [(heap[0], 0)] if heap else []
    while front and len(found) < limit:
        entry, at = heapq.heappop(front)
        if entry[2].status is SequenceStatus.WAITING:
            found.append(entry[2])
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heapq.heappush(front, (heap[child], child))
    return found


def _sequence_view(sequence: Sequence) -> SequenceView:
    table = sequence.block_table
    assert table is not None
    return SequenceView(
        slot=sequence.slot,
        request_id=sequence.request.request_id,
        choice=sequence.request.choice,
        num_prompt=sequence.num_prompt,
        num_tokens=len(sequence.token_ids),
        num_computed=sequence.num_computed,
        num_cached=sequence.num_cached,
        num_blocks=len(table.block_ids),
        num_shared_blocks=table.num_shared,
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
