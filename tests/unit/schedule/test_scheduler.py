"""One example for each guarantee of the scheduler. Blocks hold four tokens unless stated otherwise."""

import pytest

from octavo.errors import RequestError
from octavo.protocol import FinishReason
from octavo.schedule import AdmissionPolicy
from unit.schedule.driver import Computed, Make


def test_a_long_prompt_is_computed_in_chunks(make_driver: Make, computed: Computed) -> None:
    driver = make_driver(max_step_tokens=5)
    driver.add("a", range(12))
    assert computed(driver.step()) == {"a": (0, 5)}
    assert computed(driver.step()) == {"a": (5, 10)}
    last = driver.step()["a"]
    assert (last.start, last.token_ids, last.num_sampled) == (10, (10, 11), 1)
    assert last.table_from == 3  # the worker already has three blocks, which are enough
    assert last.block_ids == ()
    assert [output.token_ids for output in driver.outputs] == [(9,)]


def test_the_last_output_reports_every_chunk(make_driver: Make, computed: Computed) -> None:
    """Includes chunks recomputed after a preemption, but no decode steps and no cached tokens."""
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
    timings = driver.outputs[-1].timings
    assert timings is not None
    spans = [(chunk.start, chunk.start + chunk.num_tokens) for chunk in timings.chunks]
    assert spans == [*expected, (8, 13)]
    assert {chunk.seconds for chunk in timings.chunks} == {0.25}
    assert timings.num_chunks_left_out == 0


def test_only_the_first_chunks_are_reported_if_there_are_many(make_driver: Make) -> None:
    driver = make_driver(max_step_tokens=1, max_model_len=400)
    driver.add("long", range(300), params={"max_tokens": 2})
    driver.run()
    timings = driver.outputs[-1].timings
    assert timings is not None
    assert [(chunk.start, chunk.num_tokens) for chunk in timings.chunks] == [(i, 1) for i in range(256)]
    assert timings.num_chunks_left_out == 300 - 256


def test_decoding_sequences_get_their_token_before_prompt_chunks(
    make_driver: Make, computed: Computed
) -> None:
    driver = make_driver(max_step_tokens=6)
    driver.add("reader", [1], priority=1)
    driver.add("another", [2], priority=1)
    driver.step()
    driver.add("prompt", range(10, 30), priority=0)
    assert computed(driver.step()) == {"prompt": (0, 4), "reader": (1, 2), "another": (1, 2)}


def test_adopted_blocks_do_not_cost_a_decoding_sequence_its_token(
    make_driver: Make, computed: Computed
) -> None:
    """After adopting blocks, `late` needs one token; the reader still gets the last token of the budget."""
    driver = make_driver(max_step_tokens=4, block_size=1)
    driver.add("reader", [1], priority=2, params={"max_tokens": 20})
    driver.step()
    driver.add("late", range(10, 17), priority=1)
    assert computed(driver.step()) == {"late": (0, 3), "reader": (1, 2)}
    driver.add("urgent", range(10, 30), priority=0)
    assert computed(driver.step()) == {"urgent": (3, 6), "reader": (2, 3)}
    assert computed(driver.step()) == {"urgent": (6, 9), "reader": (3, 4)}
    assert computed(driver.step()) == {"urgent": (9, 11), "late": (6, 7), "reader": (4, 5)}


def test_the_last_sequence_is_preempted_and_keeps_its_queue_position(make_driver: Make) -> None:
    driver = make_driver(num_blocks=6, prefix_caching=False)
    driver.add("first", range(4), params={"max_tokens": 12})
    driver.add("second", range(10, 14), params={"max_tokens": 12})
    while set(driver.step()) == {"first", "second"}:
        pass
    assert driver.scheduler.counters.preemptions == 1  # second gave its blocks to first
    driver.add("third", range(20, 24))
    driver.run()
    ended = [output.request_id for output in driver.outputs if output.finish]
    assert ended == ["first", "second", "third"]
    preempted = {o.request_id: o.num_preemptions for o in driver.outputs if o.finish}
    assert preempted == {"first": 0, "second": 1, "third": 0}


def test_a_preempted_sequence_reuses_its_cached_blocks(make_driver: Make, computed: Computed) -> None:
    driver = make_driver(max_running=1)
    driver.add("slow", range(9), priority=1)
    driver.step()
    driver.add("urgent", [50, 51], priority=0, params={"max_tokens": 1})
    assert computed(driver.step()) == {"urgent": (0, 2)}
    again = driver.step()["slow"]
    assert (again.start, again.token_ids) == (
        8,
        (8, 9),
    )  # two blocks come from the tree; the last token was sampled


def test_priority_preempts_and_age_does_not(make_driver: Make) -> None:
    driver = make_driver(max_running=1)
    driver.add("low", [1], priority=1)
    driver.step()
    driver.add("equal", [2], priority=1)
    assert set(driver.step()) == {"low"}
    driver.add("high", [3], priority=0)
    assert set(driver.step()) == {"high"}
    assert driver.scheduler.counters.preemptions == 1


def test_no_request_overtakes_the_head_of_the_queue(make_driver: Make) -> None:
    driver = make_driver(num_blocks=8)
    driver.add("running", range(16), params={"max_tokens": 3})
    driver.step()
    driver.add("large", range(100, 120))
    driver.add("small", [7])
    assert set(driver.step()) == {"running"}  # `small` would fit, but `large` is first
    driver.run()
    assert [output.request_id for output in driver.outputs if output.token_ids][3] == "large"


def test_choices_share_the_blocks_of_the_prompt(make_driver: Make, computed: Computed) -> None:
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


def test_equal_prompts_in_one_step_are_deduplicated(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("a", range(9))
    driver.add("b", range(9))
    driver.step()
    assert driver.kv.num_cached == 2
    slice_of_b = driver.step()["b"]
    assert slice_of_b.table_from == 0  # its first blocks were replaced by those of `a`


def test_static_batches_hold_all_choices_from_the_start(make_driver: Make, computed: Computed) -> None:
    """No choice waits for another to compute the prompt, since it would miss the batch."""
    driver = make_driver(admission=AdmissionPolicy.STATIC)
    for choice in range(3):
        driver.add("a", range(6), choice=choice)
    assert computed(driver.step()) == {"a": (0, 6), "a/1": (0, 6), "a/2": (0, 6)}


def test_a_sequence_is_not_preempted_unless_that_frees_enough_blocks(make_driver: Make) -> None:
    """The blocks of the less urgent request are too few, so it runs until the urgent one fits."""
    driver = make_driver(num_blocks=10)
    driver.add("first", range(20), priority=0)
    driver.add("less urgent", range(50, 54), priority=5)
    driver.step()
    driver.add("urgent", range(100, 116), priority=0)
    assert set(driver.step()) == {"first", "less urgent"}
    assert driver.scheduler.counters.preemptions == 0
    driver.run()


def test_a_blocked_head_is_not_looked_up_again_until_something_changes(
    make_driver: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup walks the tree for a whole prompt, so it is not repeated in every step."""
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
    driver = make_driver(admission=AdmissionPolicy.STATIC)
    driver.add("a", [1], params={"max_tokens": 2})
    driver.step()
    driver.add("b", [2])
    assert set(driver.step()) == {"a"}
    assert set(driver.step()) == {"b"}


def test_a_deadline_ends_running_and_waiting_requests(make_driver: Make) -> None:
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


def test_an_error_ends_only_its_own_request_and_its_blocks_are_not_cached(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("bad", range(9))
    driver.add("good", range(20, 29))
    driver.step(fails="bad")
    assert driver.finished() == {"bad": "error"}
    assert driver.kv.num_cached == 2  # those of `good`
    driver.run()
    assert driver.finished()["good"] == "length"


def test_an_id_in_use_is_rejected(make_driver: Make) -> None:
    driver = make_driver()
    driver.add("a", [1])
    with pytest.raises(RequestError, match="already in use"):
        driver.add("a", [1])
    driver.run()
    driver.add("a", [1])  # the first request has ended


@pytest.mark.parametrize(("prompt", "max_tokens"), [(0, 1), (64, 1), (20, 21)])
def test_requests_that_can_never_fit_are_rejected_at_once(
    make_driver: Make, prompt: int, max_tokens: int
) -> None:
    driver = make_driver(num_blocks=10)
    with pytest.raises(RequestError) as refusal:
        driver.add("a", range(prompt), params={"max_tokens": max_tokens})
    assert refusal.value.param == "prompt"
    assert not driver.scheduler.has_unfinished


def test_a_request_that_needs_all_blocks_is_served_alone(make_driver: Make) -> None:
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
def test_resuming_a_complete_answer_ends_at_once(
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


def test_prompt_scores_are_delivered_once_despite_chunks_hits_and_preemptions(make_driver: Make) -> None:
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


def test_abort_ends_all_choices_and_frees_their_blocks(make_driver: Make) -> None:
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
