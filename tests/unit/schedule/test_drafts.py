"""Which slices get drafts. The worker samples only TOKEN, so a draft of anything else is rejected."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.drafting import Proposer
from octavo.plan import SequenceSlice, StepPlan
from octavo.schedule import UNLIMITED, DraftPolicy
from octavo.schedule.break_even import RowCosts
from octavo.schedule.drafts import GUESS_STEPS
from unit.schedule.driver import TOKEN, Driver

RIGHT, WRONG, STOP = TOKEN, TOKEN + 1, TOKEN + 2


class FixedDrafts:
    """Proposes the same tokens always. It is method and proposer, and records the texts it has learnt."""

    def __init__(self, drafts: Sequence[int]) -> None:
        self.drafts = drafts
        self.learnt: list[tuple[int, ...]] = []

    def open(self, salt: str) -> Proposer:
        return self

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        self.learnt.append(tuple(token_ids[num_prompt:]))

    def learn(self) -> None:
        pass

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        return self.drafts


def num_rows(plan: StepPlan) -> int:
    return sum(len(piece.token_ids) for piece in plan.slices)


def steps(driver: Driver) -> Iterator[dict[str, SequenceSlice]]:
    while driver.scheduler.has_unfinished:
        yield driver.step()


REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.integers(1, 20),
            "resumed": st.integers(0, 30),
            "rest": st.integers(1, 12),
            "priority": st.integers(0, 1),
        }
    ),
    min_size=1,
    max_size=6,
)
Known = list[tuple[str, int, tuple[int, ...], int]]  # slices without drafts


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    num_blocks=st.just(100),
    max_step_tokens=st.sampled_from([8, 11, 24, UNLIMITED]),
)
def test_drafts_take_nothing_from_others(
    requests: list[dict[str, int]], num_blocks: int, max_step_tokens: int
) -> None:
    """If all drafts are rejected, each step computes the same known tokens as without drafts."""

    def run(speculation: FixedDrafts | None) -> tuple[list[Known], list[int]]:
        driver = Driver(
            num_blocks=num_blocks,
            max_running=4,
            max_step_tokens=max_step_tokens,
            prefix_caching=False,  # drafts may take blocks that are only cached
            speculation=speculation,
            draft_policy=DraftPolicy.ALL,
        )
        rows, known = [], []
        for number, request in enumerate(requests):
            driver.add(
                str(number),
                [number + 100] * request["prompt"],
                params={"max_tokens": request["resumed"] + request["rest"]},
                resume_ids=(TOKEN,) * request["resumed"],
                priority=-request["priority"],
            )
            known.append(_known(driver.step()))
            rows.append(num_rows(driver.plan))
        for slices in steps(driver):
            known.append(_known(slices))
            rows.append(num_rows(driver.plan))
        assert driver.scheduler.stats().tokens_accepted == 0
        return known, rows

    drafted, rows = run(FixedDrafts((WRONG,) * 9))
    assert max(rows) <= max_step_tokens
    assert drafted == run(None)[0]


def _known(slices: dict[str, SequenceSlice]) -> Known:
    return [
        (name, piece.start, piece.token_ids[: piece.num_known], min(piece.num_sampled, 1))
        for name, piece in slices.items()
    ]


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), num_blocks=st.integers(10, 30))
def test_drafts_leave_a_block_per_running_sequence(lengths: list[int], num_blocks: int) -> None:
    """So the next step can compute the known tokens of all."""

    def check(plan: StepPlan) -> float:
        for piece in plan.slices:
            num_new = piece.table_from + len(piece.block_ids) if piece.block_ids else 0
            if num_new > driver.kv.blocks_for(piece.start + piece.num_known):
                assert driver.kv.num_available >= len(driver.scheduler.running())
        return 1.0

    driver = Driver(
        num_blocks=num_blocks,
        speculation=FixedDrafts((RIGHT,) * 8),
        draft_policy=DraftPolicy.ALL,
        seconds_of=check,  # after the step is planned, before its results are applied
    )
    for number, length in enumerate(lengths):
        driver.add(str(number), [number] * length, params={"max_tokens": 20})
    driver.run()
    assert driver.scheduler.stats().tokens_accepted > 0


def test_all_of_the_rest_is_used() -> None:
    driver = Driver(max_step_tokens=16, speculation=FixedDrafts((WRONG,) * 20), draft_policy=DraftPolicy.ALL)
    for number in range(3):
        driver.add(str(number), (number,), params={"max_tokens": 30})
    driver.step()
    assert [piece.num_drafted for piece in driver.step().values()] == [8, 5, 0]


def test_blocks_for_drafts_leave_one_per_running_sequence() -> None:
    driver = Driver(
        num_blocks=6,
        prefix_caching=False,
        speculation=FixedDrafts((WRONG,) * 8),
        draft_policy=DraftPolicy.ALL,
    )
    for number in range(2):
        driver.add(str(number), (1, 2), params={"max_tokens": 12})
    driver.step()
    slices = driver.step()
    # Each has one block for three tokens. Two of the four free blocks are left.
    assert [piece.num_drafted for piece in slices.values()] == [8, 1]


@given(
    drafts=st.lists(st.sampled_from([RIGHT, RIGHT, RIGHT, WRONG, STOP]), max_size=12),
    max_tokens=st.integers(1, 20),
)
def test_no_draft_can_be_the_last_token(drafts: list[int], max_tokens: int) -> None:
    speculation = FixedDrafts(drafts)
    driver = Driver(speculation=speculation, draft_policy=DraftPolicy.ALL)
    driver.add("a", (1, 2, 3), params={"max_tokens": max_tokens}, stop_ids=(STOP,))
    drafted = accepted = 0
    for slices in steps(driver):
        piece = slices["a"]
        assert STOP not in piece.draft_ids
        assert list(piece.draft_ids) == drafts[: piece.num_drafted]
        assert piece.start + len(piece.token_ids) < 3 + max_tokens
        drafted += piece.num_drafted
        accepted += _num_right(piece.draft_ids)
    tokens = [token for output in driver.outputs for token in output.token_ids]
    assert tokens == [TOKEN] * max_tokens
    assert max_tokens <= 2 or speculation.learnt == [tuple(tokens)]
    stats, last = driver.scheduler.stats(), driver.outputs[-1]
    assert (stats.tokens_drafted, stats.tokens_accepted) == (drafted, accepted)
    assert (last.num_drafted, last.num_accepted) == (drafted, accepted)
    assert stats.tokens_sampled == max_tokens
    assert stats.steps == max_tokens - accepted


def _num_right(draft_ids: tuple[int, ...]) -> int:
    return next((n for n, token in enumerate(draft_ids) if token != RIGHT), len(draft_ids))


def test_an_accepted_stop_token_needs_no_draft() -> None:
    """TOKEN ends the answer, so it is never drafted."""
    driver = Driver(speculation=FixedDrafts((RIGHT,) * 4), draft_policy=DraftPolicy.ALL)
    driver.add("a", (1,), params={"max_tokens": 9, "min_tokens": 5}, stop_ids=(RIGHT,))
    driver.run()
    assert driver.finished() == {"a": "stop"}
    assert driver.scheduler.stats().tokens_drafted == 0


def test_a_failed_answer_is_not_learnt() -> None:
    speculation = FixedDrafts(())
    driver = Driver(speculation=speculation, draft_policy=DraftPolicy.ALL)
    driver.add("a", (1,))
    driver.step()
    driver.step()
    driver.step(fails="a")
    assert driver.finished() == {"a": "error"}
    assert speculation.learnt == []


def test_a_step_with_a_prompt_drafts_nothing() -> None:
    driver = Driver(max_step_tokens=12, speculation=FixedDrafts((RIGHT,) * 8))
    driver.add("a", (1, 2), params={"max_tokens": 60})
    driver.step()
    assert driver.step()["a"].num_drafted > 0
    driver.add("b", tuple(range(100, 140)), params={"max_tokens": 1})
    for slices in steps(driver):
        if "b" not in slices:
            assert slices["a"].num_drafted > 0 or driver.finished()
            return
        assert [piece.num_drafted for piece in slices.values()] == [0] * len(slices)
    raise AssertionError("a ended before b")


def costing(fixed: float, per_row: float) -> Callable[[StepPlan], float]:
    return lambda plan: fixed + per_row * num_rows(plan)


class DraftsByPrompt(FixedDrafts):
    """Its drafts are right only for prompts that begin with RIGHT."""

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        return (token_ids[0],) * limit


def test_each_sequence_has_its_own_acceptance() -> None:
    driver = Driver(
        num_blocks=1000, max_model_len=1000, speculation=DraftsByPrompt(()), seconds_of=costing(0.75, 0.25)
    )
    driver.add("a", (RIGHT,), params={"max_tokens": 900})
    driver.add("b", (WRONG,), params={"max_tokens": 900})
    for _ in range(40):
        driver.step()
    later = [driver.step() for _ in range(20)]
    assert all(slices["a"].num_drafted for slices in later)
    assert not any(slices["b"].num_drafted for slices in later)


def test_a_new_sequence_starts_from_the_acceptance_of_others() -> None:
    driver = Driver(
        num_blocks=1000, max_model_len=1000, speculation=DraftsByPrompt(()), seconds_of=costing(0.75, 0.25)
    )

    def first_drafts(name: str, first: int) -> int:
        driver.add(name, (first,), params={"max_tokens": 300})
        return [slices[name].num_drafted for slices in steps(driver)][1]

    assert first_drafts("a", WRONG) > 0
    assert first_drafts("b", WRONG) == 0


def test_drafting_stops_when_all_are_rejected_and_starts_when_guesses_are_right() -> None:
    speculation = FixedDrafts((RIGHT,) * 8)
    driver = Driver(
        num_blocks=1000, max_model_len=2000, speculation=speculation, seconds_of=costing(0.75, 0.25)
    )
    driver.add("a", (1,), params={"max_tokens": 1900})

    def drafted(num_steps: int) -> list[int]:
        return [driver.step()["a"].num_drafted for _ in range(num_steps)]

    assert all(drafted(20)[-10:])
    speculation.drafts = (WRONG,) * 8
    assert not any(drafted(200)[-100:])
    speculation.drafts = (RIGHT,) * 8
    assert all(drafted(10 * GUESS_STEPS)[-10:])


@pytest.mark.parametrize(
    ("fixed", "per_row", "num_sequences", "has_drafts"),
    [(0.0, 0.01, 48, False), (0.5, 0.02, 48, False), (1.0, 0.002, 24, True)],
    ids=["only computing", "costly rows", "cheap rows"],
)
def test_no_draft_of_a_large_batch_is_below_its_break_even(
    fixed: float, per_row: float, num_sequences: int, has_drafts: bool
) -> None:
    seconds_of = costing(fixed, per_row)

    def run() -> list[StepPlan]:
        driver = Driver(
            num_blocks=4000,
            max_running=48,
            max_model_len=512,
            speculation=FixedDrafts((RIGHT, RIGHT, WRONG, RIGHT)),
            seconds_of=seconds_of,
        )
        plans = []
        for number in range(num_sequences):
            driver.add(str(number), (number,), params={"max_tokens": 400 - number})
            for _ in range(2):
                driver.step()
                plans.append(driver.plan)
        plans += [driver.plan for _ in steps(driver)]
        return plans

    plans, measured, full = run(), RowCosts(), 0
    for plan in plans:
        if not plan.opened:
            rows, rows_without = num_rows(plan), len(plan.slices)
            costs = measured.at(rows_without)
            # If all drafts were accepted, this step would have been worth it.
            assert rows == rows_without or (
                rows / (costs.fixed + costs.per_row * rows)
                > rows_without / (costs.fixed + costs.per_row * rows_without)
            )
            full += rows - rows_without if rows_without == num_sequences else 0
            measured.note(rows, seconds_of(plan))
    assert (full > 0) is has_drafts
    assert run() == plans
