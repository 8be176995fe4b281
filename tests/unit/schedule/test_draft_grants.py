"""When the draft model of the worker may draft. The worker samples only TOKEN."""

from octavo.plan import SequenceSlice, StepPlan
from octavo.schedule.draft_grants import TEST_STEPS
from unit.schedule.driver import Driver
from unit.schedule.test_drafts import RIGHT, WRONG, FixedDrafts, num_rows

MANY = 200  # tokens
PASS_SECONDS = 0.3  # of a step


def seconds(plan: StepPlan) -> float:
    """Return the duration of a step without passes. A row adds little to it."""
    return 0.98 + 0.02 * num_rows(plan)


def driver(drafts: int, *, text: tuple[int, ...] = (), draft_context: int | None = None) -> Driver:
    engine = Driver(
        num_blocks=2000,
        max_running=64,
        max_model_len=2000,
        speculation=FixedDrafts(text),
        seconds_of=seconds,
        drafts_of=lambda piece: (drafts,) * 8,
        draft_context=draft_context,
    )
    engine.pass_seconds = PASS_SECONDS
    return engine


def run(engine: Driver) -> list[list[SequenceSlice]]:
    """Return the slices of each step."""
    plans = []
    while engine.scheduler.has_unfinished:
        plans.append(list(engine.step().values()))
    return plans


def test_a_model_that_is_right_drafts_for_a_single_stream() -> None:
    engine = driver(RIGHT)
    engine.add("a", [1, 2], params={"max_tokens": MANY})
    steps = run(engine)
    assert len(steps) < MANY / 3
    without = Driver(num_blocks=100, max_model_len=2000, seconds_of=seconds)
    without.add("a", [1, 2], params={"max_tokens": MANY})
    run(without)
    assert engine.now < without.now / 1.5
    assert engine.scheduler.stats().tokens_accepted == engine.scheduler.stats().tokens_drafted > MANY / 2


def test_a_model_that_is_wrong_is_tested_now_and_then() -> None:
    engine = driver(WRONG)
    engine.add("a", [1, 2], params={"max_tokens": 1000})
    steps = run(engine)
    granted = [number for number, slices in enumerate(steps) if slices[0].num_granted]
    assert len(steps) == 1000
    late = [number for number in granted if number > 100]
    assert 2 <= len(late) <= 1000 / TEST_STEPS
    assert all(steps[number][0].num_granted == 1 for number in late)
    assert engine.now < 1.02 * len(steps)  # without drafts, a step takes a second


def test_one_slow_pass_does_not_end_the_drafting() -> None:
    engine = driver(RIGHT)
    engine.add("a", [1, 2], params={"max_tokens": 1000})
    engine.pass_seconds = 100.0
    while not engine.step()["a"].num_granted:
        pass
    engine.pass_seconds = PASS_SECONDS
    steps = run(engine)
    assert len(steps) < 5 * TEST_STEPS + 1000 / 3


def test_a_model_that_has_failed_gets_no_grants() -> None:
    engine = driver(RIGHT, text=(RIGHT,) * 2)
    engine.add("a", [1, 2], params={"max_tokens": MANY})
    engine.draft_model_failed = True
    steps = run(engine)
    assert sum(slices[0].num_granted > 0 for slices in steps) <= 1
    assert sum(slices[0].num_drafted for slices in steps) > MANY / 2


def test_beyond_the_context_of_the_model_only_text_is_used() -> None:
    engine = driver(RIGHT, text=(WRONG, RIGHT), draft_context=50)
    engine.add("a", [1, 2], params={"max_tokens": MANY})
    for slices in run(engine):
        (piece,) = slices
        assert piece.start + len(piece.token_ids) + piece.num_granted <= 50 or not piece.num_granted
    assert engine.scheduler.stats().tokens_accepted > 30


def test_text_is_used_where_the_model_is_better_but_not_worth_its_passes() -> None:
    """Of many streams only one is eligible for the model, and it alone would have to pay for the passes."""
    engine = driver(RIGHT, text=(RIGHT, WRONG), draft_context=10)
    for number in range(15):
        engine.add(str(number), [number] * 10, params={"max_tokens": MANY})
    engine.add("short", [99], params={"max_tokens": 8})
    drafted = [slices["short"] for slices in iter(engine.step, {}) if "short" in slices]
    assert sum(piece.num_granted for piece in drafted) == 0
    assert sum(piece.num_drafted for piece in drafted) > 0


def test_it_drafts_nothing_beside_a_prompt_or_before_the_answer() -> None:
    engine = driver(RIGHT)
    engine.add("a", [1, 2], params={"max_tokens": 40})
    assert not engine.step()["a"].num_granted
    assert engine.step()["a"].num_granted
    engine.add("b", [3, 4, 5], params={"max_tokens": 40})
    slices = engine.step()
    assert [slices[name].num_granted for name in "ab"] == [0, 0]
    assert all(piece.num_granted for piece in engine.step().values())


def test_a_full_batch_gets_none() -> None:
    """Each row costs its share of the step: no draft is above its break-even."""
    engine = Driver(
        num_blocks=2000,
        max_running=48,
        speculation=FixedDrafts(()),
        seconds_of=lambda plan: 0.02 * num_rows(plan),
        drafts_of=lambda piece: (RIGHT,) * 8,
    )
    engine.pass_seconds = PASS_SECONDS
    for number in range(48):
        engine.add(str(number), [number], params={"max_tokens": 30})
    assert sum(piece.num_granted for slices in run(engine) for piece in slices) == 0


def test_a_long_prompt_is_caught_up_with_only_when_the_answer_is_long() -> None:
    first = {}
    for length in (10, 1000):
        engine = driver(RIGHT)
        engine.add("a", [1] * length, params={"max_tokens": MANY})
        steps = run(engine)
        first[length] = next(number for number, slices in enumerate(steps) if slices[0].num_granted)
    assert first[10] <= 2
    assert 10 < first[1000] < 20


def test_text_that_is_right_is_cheaper_than_a_model() -> None:
    engine = driver(RIGHT, text=(RIGHT,) * 8)
    engine.add("a", [1, 2], params={"max_tokens": MANY})
    steps = run(engine)
    assert sum(slices[0].num_drafted for slices in steps) > MANY / 2
    assert sum(slices[0].num_granted for slices in steps) == 0


def test_a_model_that_is_right_replaces_text_that_is_wrong() -> None:
    engine = driver(RIGHT, text=(WRONG,) * 8)
    engine.add("a", [1, 2], params={"max_tokens": MANY})
    steps = run(engine)
    assert sum(slices[0].num_granted for slices in steps) > MANY / 2
    assert sum(slices[0].num_drafted for slices in steps) < 20
