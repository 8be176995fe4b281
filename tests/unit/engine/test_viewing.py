"""A view shows the state of the scheduler; creating one changes nothing."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache import KVManager
from octavo.engine import EngineCore
from octavo.engine.viewing import StepLog, first_queued
from octavo.lazy_heap import LazyHeap
from octavo.plan import SequenceSlice, SliceResult, StepPlan, StepResult
from octavo.protocol import Failure, FailureCode, GenerateRequest, SamplingParams
from octavo.schedule import Scheduler, SchedulerConfig
from octavo.schedule.sequence import Sequence, SequenceStatus
from octavo.view import CACHED_HELD, CACHED_IDLE, FREE, MAX_STEPS, EngineView

NUM_BLOCKS = 20


class Engine:
    """Has too few blocks: sequences wait, share blocks and are preempted. Reading the clock advances it."""

    def __init__(self) -> None:
        self.now = 100.0
        config = SchedulerConfig(max_running=4, max_model_len=64, max_step_tokens=16)
        self.scheduler = Scheduler(config, KVManager(NUM_BLOCKS, block_size=4))
        self.plans: list[StepPlan] = []
        self.core = EngineCore(self.scheduler, self.execute, self.clock)
        for number in range(9):
            prompt = (*range(8), *range(number % 3, number % 3 + 5 + number))
            for choice in range(1 + number % 2):
                request = GenerateRequest(
                    request_id=f"r{number}",
                    choice=choice,
                    prompt_ids=prompt,
                    params=SamplingParams(max_tokens=20, seed=0),
                    cache_salt="ab"[number % 2],
                    arrival=90.0,
                )
                self.core.handle(request)

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return StepResult(tuple([SliceResult((7,) if piece.num_sampled else ()) for piece in plan.slices]))

    def views(self) -> Iterator[EngineView]:
        """Return one view after each step."""
        self.core.log_steps(True)
        while self.core.has_unfinished:
            self.core.step()
            yield self.core.view()


def test_a_view_matches_the_scheduler_state() -> None:
    engine = Engine()
    num_preempted = num_waited = 0
    for view in engine.views():
        scheduler = engine.scheduler
        assert view.stats == scheduler.stats()
        blocks = [code for code, count in view.blocks for _ in range(count)]
        assert len(blocks) == NUM_BLOCKS
        assert blocks.count(FREE) == view.stats.blocks_free
        assert blocks.count(CACHED_IDLE) == view.stats.blocks_idle
        assert blocks.count(CACHED_IDLE) + blocks.count(CACHED_HELD) == view.stats.blocks_cached
        assert [one.slot for one in view.sequences] == [one.slot for one in scheduler.running()]
        for shown, sequence in zip(view.sequences, scheduler.running(), strict=True):
            assert (shown.request_id, shown.choice) == (sequence.request.request_id, sequence.request.choice)
            assert (shown.num_tokens, shown.num_prompt) == (len(sequence.token_ids), sequence.num_prompt)
            assert (shown.num_computed, shown.num_cached) == (sequence.num_computed, sequence.num_cached)
            assert shown.preemptions == sequence.num_preemptions
            private = [block for block, code in enumerate(blocks) if code == shown.slot]
            assert sequence.block_table is not None
            assert private == sorted(sequence.block_table.block_ids[shown.num_shared_blocks :])
            assert len(private) == shown.num_blocks - shown.num_shared_blocks
        every = [one for choices in scheduler._requests.values() for one in choices.values()]
        waiting = sorted(
            [one for one in every if one.status is SequenceStatus.WAITING], key=lambda one: one.key
        )
        assert [(one.request_id, one.choice) for one in view.waiting] == [
            (one.request.request_id, one.request.choice) for one in waiting
        ]
        assert len(view.waiting) == view.stats.num_waiting
        assert all(one.seconds_waiting > 10 for one in view.waiting)
        assert sum(node.num_blocks for node in view.tree.nodes) == view.stats.blocks_cached
        assert len({node.salt for node in view.tree.nodes}) <= 2
        (step,) = view.steps
        plan = engine.plans[-1]
        assert step.step == plan.step
        assert step.slices == tuple(
            (piece.slot, piece.start, len(piece.token_ids), piece.num_sampled) for piece in plan.slices
        )
        num_preempted += len(step.preempted)
        assert num_preempted == view.stats.preemptions
        assert 0 < step.seconds < view.time - step.time < 0.1
        num_waited += bool(view.waiting)
    assert num_preempted > 2
    assert num_waited > 3


def test_creating_a_view_changes_nothing() -> None:
    watched, plain = Engine(), Engine()
    for _ in watched.views():
        pass
    while plain.core.has_unfinished:
        plain.core.step()
    assert watched.plans == plain.plans
    assert watched.core.stats().preemptions == plain.core.stats().preemptions > 2


def test_steps_are_kept_only_while_watched() -> None:
    engine = Engine()
    engine.core.step()
    assert engine.core.view().steps == ()
    engine.core.log_steps(True)
    engine.core.step()
    engine.core.log_steps(True)  # a second call keeps the logged steps
    engine.core.step()
    assert [step.step for step in engine.core.view().steps] == [2, 3]
    assert engine.core.view().steps == ()
    engine.core.step()
    engine.core.log_steps(False)
    assert engine.core.view().steps == ()


def test_only_the_last_steps_are_kept() -> None:
    log = StepLog()
    for number in range(MAX_STEPS + 10):
        log.note(StepPlan(number, (), (), ()), StepResult(()), [], 0.0, 0.0)
    steps, left_out = log.take(0.0)
    assert ([step.step for step in steps], left_out) == (list(range(10, MAX_STEPS + 10)), 10)
    assert log.take(0.0) == ((), 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans())))
def test_a_step_shows_the_drafts_of_each_slice(pieces: list[tuple[int, int, bool, bool]]) -> None:
    """A slice that failed has accepted nothing; one without drafts is not listed. The drafts may come from
    the plan or from the draft model of the worker."""
    slices, results, expected = [], [], []
    for slot, (num_drafted, num_accepted, fails, by_model) in enumerate(pieces):
        accepted = min(num_drafted, num_accepted)
        token_ids = tuple(range(1 + num_drafted))
        slices.append(
            SequenceSlice(slot, 9, token_ids[:1], 0, (), num_sampled=1, num_granted=4)
            if by_model
            else SequenceSlice(slot, 9, token_ids, 0, (), 1 + num_drafted, num_drafted=num_drafted)
        )
        result = SliceResult(token_ids[: accepted + 1], num_drafted=num_drafted, num_accepted=accepted)
        failed = SliceResult(failure=Failure(FailureCode.ENGINE_FAILED, "failed"), num_drafted=num_drafted)
        results.append(failed if fails else result)
        expected += [(slot, num_drafted, 0 if fails else accepted)] if num_drafted else []
    log = StepLog()
    log.note(StepPlan(1, (), (), tuple(slices)), StepResult(tuple(results)), [], 0.0, 0.0)
    (step,), _ = log.take(0.0)
    assert step.drafts == tuple(expected)
    assert step.slices == tuple(
        [(slot, 9, 1 + num_drafted, 1 + num_drafted) for slot, (num_drafted, *_) in enumerate(pieces)]
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=400), st.integers(0, 400))
def test_the_queue_is_listed_in_admission_order(pushed: list[tuple[int, bool]], limit: int) -> None:
    heap: LazyHeap[Sequence] = LazyHeap(lambda one: one.status is SequenceStatus.WAITING)
    num_waiting = 0
    for order, (key, is_waiting) in enumerate(pushed):
        params = SamplingParams(max_tokens=1, seed=0)
        request = GenerateRequest(request_id=str(order), prompt_ids=(1,), params=params)
        sequence = Sequence(request, order, 10)
        heap.push(key, sequence)
        num_waiting += is_waiting
        if not is_waiting:
            sequence.status = SequenceStatus.FINISHED
    first = first_queued(heap.entries, limit)
    assert first == [heap.pop() for _ in range(min(limit, num_waiting))]
