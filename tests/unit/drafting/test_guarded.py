"""An exception in a method of drafting ends the drafting, and nothing else."""

from collections.abc import Sequence

import pytest

from octavo.drafting.guarded import GuardedSpeculation
from octavo.drafting.proposer import Proposer

CALLS = ("open", "propose", "close", "learn")


class Failing:
    """Method and proposer. It fails in one call, and counts all."""

    def __init__(self, call: str) -> None:
        self._call = call
        self.num_calls = 0

    def _note(self, call: str) -> None:
        self.num_calls += 1
        if call == self._call:
            raise MemoryError(call)

    def open(self, salt: str) -> Proposer:
        self._note("open")
        return self

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        self._note("propose")
        return [1] * limit

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        assert proposer is self
        self._note("close")

    def learn(self) -> None:
        self._note("learn")


def drafts_of(speculation: GuardedSpeculation) -> list[int]:
    proposer = speculation.open("")
    drafts = proposer.propose([1, 2], 3)
    speculation.close(proposer, [1, 2], 1)
    speculation.learn()
    return list(drafts)


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_drafted_after_a_failure(call: str, caplog: pytest.LogCaptureFixture) -> None:
    inner = Failing(call)
    speculation = GuardedSpeculation(inner)
    assert drafts_of(speculation) == ([1, 1, 1] if call in {"close", "learn"} else [])
    num_calls = inner.num_calls
    assert drafts_of(speculation) == []
    assert inner.num_calls == num_calls == CALLS.index(call) + 1
    assert len(caplog.records) == 1


def test_without_a_failure_all_calls_are_passed_on() -> None:
    inner = Failing("none")
    speculation = GuardedSpeculation(inner)
    assert [drafts_of(speculation), drafts_of(speculation)] == [[1, 1, 1]] * 2
    assert inner.num_calls == 2 * len(CALLS)
