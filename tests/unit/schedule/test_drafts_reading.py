"""Proposers read few tokens per step, so that many long prompts do not delay one step."""

from collections.abc import Sequence

from octavo.drafting import Proposer
from octavo.schedule import DraftPolicy
from octavo.schedule.drafts import READ_PER_STEP
from unit.schedule.driver import Driver

NUM_SEQUENCES = 6
NUM_PROMPT = READ_PER_STEP // 2


class Reader:
    """Method of drafting, and proposer of all sequences. It counts the tokens that are new to it."""

    def __init__(self) -> None:
        self.num_seen: dict[int, int] = {}  # by the first token of the sequence
        self.num_read = 0

    def open(self, salt: str) -> Proposer:
        return self

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        pass

    def learn(self) -> None:
        self.num_read = 0

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        self.num_read += len(token_ids) - self.num_seen.get(token_ids[0], 0)
        self.num_seen[token_ids[0]] = len(token_ids)
        return ()


def test_long_prompts_are_read_one_after_another() -> None:
    reader = Reader()
    driver = Driver(
        num_blocks=NUM_SEQUENCES * NUM_PROMPT,
        max_model_len=2 * NUM_PROMPT,
        speculation=reader,
        draft_policy=DraftPolicy.ALL,
    )
    for number in range(NUM_SEQUENCES):
        driver.add(str(number), [number] * NUM_PROMPT, params={"max_tokens": 20})
    counts = []
    while driver.scheduler.has_unfinished:
        driver.step()
        counts.append(reader.num_read)
    assert max(counts) <= READ_PER_STEP
    assert len(reader.num_seen) == NUM_SEQUENCES, "all are read, sooner or later"
    assert counts.index(NUM_PROMPT + 1) == 1


def test_a_prompt_longer_than_the_bound_is_read() -> None:
    reader = Reader()
    driver = Driver(
        num_blocks=2 * READ_PER_STEP,
        max_model_len=4 * READ_PER_STEP,
        speculation=reader,
        draft_policy=DraftPolicy.ALL,
    )
    driver.add("a", [7] * (2 * READ_PER_STEP), params={"max_tokens": 4})
    while driver.scheduler.has_unfinished:
        driver.step()
    assert reader.num_seen[7] > 2 * READ_PER_STEP
