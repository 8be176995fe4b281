from hypothesis import given
from hypothesis import strategies as st

from octavo.lazy_heap import LazyHeap
from octavo.protocol import GenerateRequest, SamplingParams
from octavo.schedule.sequence import Sequence, SequenceStatus


def sequence(order: int) -> Sequence:
    params = SamplingParams(max_tokens=1, seed=0)
    return Sequence(GenerateRequest(request_id=str(order), prompt_ids=(1,), params=params), order, 10)


@given(st.lists(st.integers(0, 5), max_size=700), st.data())
def test_live_entries_are_popped_by_key_then_arrival(keys: list[int], data: st.DataObject) -> None:
    heap: LazyHeap[Sequence] = LazyHeap(lambda one: one.status is SequenceStatus.WAITING)
    all_pushed = [sequence(order) for order in range(len(keys))]
    dead = data.draw(st.sets(st.integers(0, 699)))
    for order, (key, one) in enumerate(zip(keys, all_pushed, strict=True)):
        heap.push(key, one)
        if order in dead or order % 3:  # many are dead, so that the sweep runs
            one.status = SequenceStatus.FINISHED
    living = [one for one in all_pushed if one.status is SequenceStatus.WAITING]
    expected = sorted(living, key=lambda one: (keys[one.key[1]], one.key[1]))
    assert [heap.pop() for _ in living] == expected
    assert heap.peek() is None


def test_dead_entries_do_not_accumulate() -> None:
    heap: LazyHeap[Sequence] = LazyHeap(lambda one: one.status is SequenceStatus.WAITING)
    for order in range(20_000):
        one = sequence(order)
        heap.push(order, one)
        one.status = SequenceStatus.FINISHED
    assert len(heap._entries) <= 257
