"""What the scheduler promises, one example each. Pages hold four tokens unless a test says otherwise."""

import pytest

from octavo.errors import RequestError
from octavo.protocol import FinishReason
from octavo.schedule import Admission
from unit.schedule.driver import Computed, Make


def test_a_long_prompt_is_computed_in_chunks(make_driver: Make, computed: Computed) -> None:
    driver = make_driver(max_step_tokens=5)
    driver.add("a", range(12))
    assert computed(driver.step()) == {"a": (0, 5)}
    assert computed(driver.step()) == {"a": (5, 10)}
    last = driver.step()["a"]
    assert (last.start, last.token_ids, last.num_sampled) == (10, (10, 11), 1)
    assert last.table_from == 3  # three pages are known already, and they are enough
    assert last.block_ids == ()
    assert [output.token_ids for output in driver.outputs] == [(9,)]


def test_the_last_output_tells_every_chunk(make_driver: Make, computed: Computed) -> None:
    """Also those of the second time, after a preemption; but no decode, and nothing that was cached."""
    driver = make_driver(max_running=1, max_step_tokens=5, num_blocks=8)
    driver.add("other", range(4), params={"max_tokens": 1})
    driver.step()
    driver.add("slow", range(12), priority=1, params={"max_tokens": 5})
    expected = [(4, 9), (9, 12)]
    assert [computed(driver.step())["slow"] for _ in range(3)] == [*expected, (12, 13)]
    driver.add("urgent", range(50, 74), priority=0, params={"max_tokens": 1})
    while "urgent" not in driver.finished():
        driver.step()
    assert [computed(driver.step())["slow"] for _ in range(2)] == [(8, 13), (13, 14)]
    driver.run()
    told = driver.outputs[-1].timings
    assert told is not None
    spans = [(chunk.start, chunk.start + chunk.num_tokens) for chunk in told.chunks]
    assert spans == [*expected, (8, 13)]
    assert {chunk.seconds for chunk in told.chunks} == {0.25}
    assert told.num_chunks_left_out == 0


def test_of_very_many_chunks_the_first_are_told(make_driver: Make) -> None:
    driver = make_driver(max_step_tokens=1, max_model_len=400)
    driver.add("long", range(300), params={"max_tokens": 2})
    driver.run()
    told = driver.outputs[-1].timings
    assert told is not None
    assert [(chunk.start, chunk.num_tokens) for chunk in told.chunks] == [(i, 1) for i in range(256)]
    assert told.num_chunks_left_out == 300 - 256


def test_readers_get_their_token_before_prompts_get_chunks(make_driver: Make, computed: Computed) -> None:
    driver = make_driver(max_step_tokens=6)
    driver.add("reader", [1], priority=1)
    driver.add("another", [2], priority=1)
    driver.step()
    driver.add("prompt", range(10, 30), priority=0)
    assert computed(driver.step()) == {"prompt": (0, 4), "reader": (1, 2), "another": (1, 2)}


def test_pages_from_others_do_not_cost_a_reader_its_token(make_driver: Make, computed: Computed) -> None:
    """`late` is left with one token by adopting pages; the last of the budget still is the reader's."""
    driver = make_driver(max_step_tokens=4, page_size=1)
    driver.add("reader", [1], priority=2, params={"max_tokens": 20})
    driver.step()
    driver.add("late", range(10, 17), priority=1)
    assert computed(driver.step()) == {"late": (0, 3), "reader": (1, 2)}
    driver.add("urgent", range(10, 30), priority=0)
    assert computed(driver.step()) == {"urgent": (3, 6), "reader": (2, 3)}
    assert computed(driver.step()) == {"urgent": (6, 9), "reader": (3, 4)}
    assert computed(driver.step()) == {"urgent": (9, 11), "late": (6, 7), "reader": (4, 5)}


def test_the_victim_is_the_last_in_the_order_and_keeps_its_place(make_driver: Make) -> None:
    driver = make_driver(num_blocks=6, prefix_caching=False)
    driver.add("first", range(4), params={"max_tokens": 12})
    driver.add("second", range(10, 14), params={"max_tokens": 12})
    while set(driver.step()) == {"first", "second"}:
        pass
    assert driver.scheduler.counters.preemptions == 1  # second gave its pages to first
    driver.add("third", range(20, 24))
    driver.run()
    ended = [output.request_id for output in driver.outputs if output.finish]
    assert ended == ["first", "second", "third"]
    preempted = {o.request_id: o.num_preemptions for o in driver.outputs if o.finish}
    assert preempted == {"first": 0, "second": 1, "third": 0}


def test_a_preempted_sequence_finds_its_pages_again(make_driver: Make, computed: Computed) -> None:
    driver = make_driver(max_running=1)
    driver.add("slow", range(9), priority=1)
    driver.step()
    driver.add("urgent", [50, 51], priority=0, params={"max_tokens": 1})
    assert computed(driver.step()) == {"urgent": (0, 2)}
    again = driver.step()["slow"]
    assert (again.start, again.token_ids) == (
        8,
        (8, 9),
    )  # two pages from the tree; the last token was sampled


def test_priority_preempts_and_age_does_not(make_driver: Make) -> None:
    driver = make_driver(max_running=1)
    driver.add("low", [1], priority=1)
    driver.step()
    driver.add("equal", [2], priority=1)
    assert set(driver.step()) == {"low"}
    driver.add("high", [3], priority=0)
    assert set(driver.step()) == {"high"}
    assert driver.scheduler.counters.preemptions == 1


def test_nobody_overtakes_the_head_of_the_queue(make_driver: Make) -> None:
    driver = make_driver(num_blocks=8)
    driver.add("running", range(16), params={"max_tokens": 3})
    driver.step()
    driver.add("large", range(100, 120))
    driver.add("small", [7])
    assert set(driver.step()) == {"running"}  # `small` would fit, but `large` is first
    driver.run()
    assert [output.request_id for output in driver.outputs if output.token_ids][3] == "large"


def test_choices_share_the_pages_of_the_prompt(make_driver: Make, computed: Computed) -> None:
    driver = make_driver()
    for choice in range(3):
        driver.add("a", range(9), choice=choice)
    first = driver.step()["a"]
    second = driver.step()
    assert computed(second) == {"a": (9, 10), "a/1": (8, 9), "a/2": (8, 9)}
    assert second["a/1"].block_ids[:2] == second["a/2"].block_ids[:2] == first.block_ids[:2]
    cached = {output.choice: output.num_cached for output in driver.outputs}
    assert cached == {0: 0, 1: 8, 2: 8}


@pytest.mark.parametrize("ends", ["abort", "error"])
def test_followers_outlive_their_leader(make_driver: Make, ends: str) -> None:
    driver = make_driver()
    driver.add("a", range(9), choice=0)
    driver.add("a", range(9), choice=1)
    if ends == "abort":
        driver.scheduler.abort("a", driver.now, choice=0)
    else:
        driver.step(fails="a")
    driver.run()
    finishes = {output.choice: output.finish for output in driver.outputs if output.finish}
    assert finishes == {0: FinishReason(ends), 1: FinishReason.LENGTH}


def test_equal_prompts_in_one_step_end_with_one_copy(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("a", range(9))
    driver.add("b", range(9))
    driver.step()
    assert driver.kv.num_cached == 2
    told = driver.step()["b"]
    assert told.table_from == 0  # its first pages were swapped for those of `a`


def test_static_batches_hold_all_choices_from_the_start(make_driver: Make, computed: Computed) -> None:
    """No choice waits for another to compute the prompt: it would miss the batch."""
    driver = make_driver(admission=Admission.STATIC)
    for choice in range(3):
        driver.add("a", range(6), choice=choice)
    assert computed(driver.step()) == {"a": (0, 6), "a/1": (0, 6), "a/2": (0, 6)}


def test_nobody_is_preempted_in_vain(make_driver: Make) -> None:
    """What the less urgent one holds would not be enough: it goes on until the urgent one fits."""
    driver = make_driver(num_blocks=10)
    driver.add("first", range(20), priority=0)
    driver.add("less urgent", range(50, 54), priority=5)
    driver.step()
    driver.add("urgent", range(100, 116), priority=0)
    assert set(driver.step()) == {"first", "less urgent"}
    assert driver.scheduler.counters.preemptions == 0
    driver.run()


def test_a_blocked_head_is_not_looked_up_again_while_nothing_changed(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To walk the tree costs a whole prompt: not in every step in which the head cannot be admitted."""
    driver = make_driver(num_blocks=10)
    driver.add("running", range(16))
    driver.step()
    driver.add("blocked", range(100, 120))
    driver.step()
    monkeypatch.setattr(driver.kv, "begin", lambda *_args, **_kwargs: pytest.fail("looked up again"))
    for _ in range(3):
        assert set(driver.step()) == {"running"}
    monkeypatch.undo()
    driver.run()


def test_static_admission_waits_for_the_batch(make_driver: Make) -> None:
    driver = make_driver(admission=Admission.STATIC)
    driver.add("a", [1], params={"max_tokens": 2})
    driver.step()
    driver.add("b", [2])
    assert set(driver.step()) == {"a"}
    assert set(driver.step()) == {"b"}


def test_a_deadline_ends_the_running_and_the_waiting(make_driver: Make) -> None:
    driver = make_driver(max_running=1)
    driver.add("running", [1], deadline=5.0)
    driver.add("waiting", [2], deadline=5.0)
    driver.add("patient", [3], params={"max_tokens": 1})
    driver.step()
    driver.now = 4.9
    assert set(driver.step()) == {"running"}
    driver.now = 5.0
    assert set(driver.step()) == {"patient"}
    assert driver.finished() == {"running": "deadline", "waiting": "deadline", "patient": "length"}


def test_an_error_ends_its_own_request_and_its_pages_are_not_cached(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("bad", range(9))
    driver.add("good", range(20, 29))
    driver.step(fails="bad")
    assert driver.finished() == {"bad": "error"}
    assert driver.kv.num_cached == 2  # those of `good`
    driver.run()
    assert driver.finished()["good"] == "length"


def test_an_id_in_use_is_refused(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("a", [1])
    with pytest.raises(RequestError, match="already in use"):
        driver.add("a", [1])
    driver.run()
    driver.add("a", [1])  # the first has ended


@pytest.mark.parametrize(("prompt", "max_tokens"), [(0, 1), (64, 1), (20, 21)])
def test_what_never_fits_is_refused_at_once(make_driver: Make, prompt: int, max_tokens: int) -> None:
    driver = make_driver(num_blocks=10)
    with pytest.raises(RequestError) as refusal:
        driver.add("a", range(prompt), params={"max_tokens": max_tokens})
    assert refusal.value.param == "prompt"
    assert not driver.scheduler.has_unfinished


def test_what_just_fits_is_served_alone(make_driver: Make) -> None:
    driver = make_driver(num_blocks=10)
    for name in "abc":
        driver.add(name, range(20), params={"max_tokens": 20}, cache_salt=name)
    driver.run()
    assert driver.finished() == dict.fromkeys("abc", "length")


def test_resumed_tokens_are_computed_but_not_emitted(make_driver: Make, computed: Computed) -> None:
    driver = make_driver()
    driver.add("a", [1, 2], resume_ids=(3, 4), params={"max_tokens": 3})
    assert computed(driver.step()) == {"a": (0, 4)}
    (output,) = driver.outputs
    assert (output.token_ids, output.finish) == ((9,), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("resume_ids", "finish"), [((3, 4, 5), FinishReason.LENGTH), ((3, 7), FinishReason.STOP)]
)
def test_a_resumed_answer_that_is_complete_ends_at_once(
    make_driver: Make, resume_ids: tuple[int, ...], finish: FinishReason
) -> None:
    driver = make_driver()
    driver.add("a", [1, 2], resume_ids=resume_ids, stop_ids=(7,), params={"max_tokens": 3})
    assert driver.step() == {}
    (output,) = driver.outputs
    assert (output.token_ids, output.finish) == ((), finish)


def test_a_stop_id_counts_only_after_min_tokens(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("a", [1], stop_ids=(9,), params={"min_tokens": 3})
    driver.run()
    assert [output.finish for output in driver.outputs] == [None, None, FinishReason.STOP]


def test_prompt_scores_come_once_each_over_chunks_hits_and_preemptions(make_driver: Make) -> None:
    driver = make_driver(max_running=1, max_step_tokens=5)
    driver.add("warm", range(12), priority=1, params={"max_tokens": 1})
    driver.run()
    driver.add("scored", range(12), priority=1, params={"prompt_logprobs": 0, "max_tokens": 2})
    driver.step()
    driver.add("urgent", [50], priority=0, params={"max_tokens": 1})
    driver.run()
    scored = [o for o in driver.outputs if o.request_id == "scored"]
    assert [entry.token_id for o in scored for entry in o.prompt_logprobs] == list(range(1, 12))
    assert scored[-1].num_preemptions == 1
    assert scored[-1].num_cached == 0


def test_abort_ends_all_choices_and_frees_their_pages(make_driver: Make) -> None:
    driver = make_driver()
    for choice in range(3):
        driver.add("a", range(9), choice=choice)
    driver.step()
    driver.scheduler.abort("a", driver.now)
    driver.scheduler.abort("a", driver.now)
    driver.scheduler.abort("unknown", driver.now)
    driver.step()
    assert [output.finish for output in driver.outputs[1:]] == [FinishReason.ABORT] * 3
    assert driver.kv.num_available == 100


def test_a_lost_step_starts_over_and_closes_its_slots_again(make_driver: Make, computed: Computed) -> None:
    driver = make_driver()
    driver.add("ended", [1], params={"max_tokens": 1})
    driver.add("a", range(9))
    driver.step()
    closed = driver.scheduler.schedule(driver.now).closed
    driver.scheduler.lose_step()
    driver.scheduler.check()
    assert computed(driver.step()) == {"a": (8, 10)}
    assert set(closed) < set(driver.plan.closed)  # workers may not have seen the lost plan
    assert len(set(driver.plan.closed)) == len(driver.plan.closed)
