"""Answers do not need drafts, so an exception in a method of drafting ends only the drafting."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.drafting.proposer import Proposer, Speculation

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class GuardedSpeculation:
    """Another method of drafting, until it raises. From then on nothing is drafted."""

    def __init__(self, speculation: Speculation) -> None:
        self._speculation = speculation
        self._has_failed = False

    def open(self, salt: str) -> "GuardedProposer":
        return GuardedProposer(self, self.attempt(lambda: self._speculation.open(salt), None))

    def close(self, proposer: Proposer, token_ids: Sequence[int], num_prompt: int) -> None:
        assert isinstance(proposer, GuardedProposer)
        inner = proposer.inner
        if inner is not None:
            self.attempt(lambda: self._speculation.close(inner, token_ids, num_prompt), None)

    def learn(self) -> None:
        self.attempt(self._speculation.learn, None)

    def attempt(self, call: Callable[[], Result], otherwise: Result) -> Result:
        if self._has_failed:
            return otherwise
        try:
            return call()
        except Exception:
            logger.exception("drafting failed: the engine continues without drafts until it is restarted")
            self._has_failed = True
            return otherwise


class GuardedProposer:
    def __init__(self, speculation: GuardedSpeculation, inner: Proposer | None) -> None:
        self._speculation = speculation
        self.inner = inner

    def propose(self, token_ids: Sequence[int], limit: int) -> Sequence[int]:
        inner = self.inner
        if inner is None:
            return ()
        nothing: Sequence[int] = ()
        return self._speculation.attempt(lambda: tuple(inner.propose(token_ids, limit)), nothing)
