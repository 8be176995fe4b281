"""What a grammar allows after each drafted token, found while the model computes the rows of the drafts."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future

import torch

from octavo.errors import GrammarError
from octavo.grammar.compiler import CompiledGrammar
from octavo.grammar.matcher import GrammarMatcher

logger = logging.getLogger(__name__)

QUICK_TOKENS = 64  # up to this number, following earlier tokens takes a few milliseconds
SLOW_SECONDS = 0.005  # for one mask, or to compile: a job that takes longer runs on the slow pool
AHEAD_SECONDS = 20.0  # CPU time for all drafts of one sequence


class LookAhead:
    """What may follow the drafts of one step."""

    def __init__(self) -> None:
        self.masks: list[torch.Tensor] = []  # after draft 1, 2, ...; grows until `done`
        self.done: Future[None] = Future()
        self.is_over = False  # set by the step: later masks are not needed


class GrammarAhead:
    """Follows the answer of one sequence with a matcher of its own, and looks at what may follow its drafts.

    Queries about drafts fill tables, and the limits on these must not depend on what was drafted: the matcher
    that decides the answer never sees a draft. Any error here ends only the looking ahead.

    Owned by a pool thread until the last `LookAhead` is done, then by the step. Until then, no other one
    starts, so a step's masks do not change while it uses them.
    """

    def __init__(self, compiled: CompiledGrammar, num_words: int) -> None:
        self._compiled = compiled
        self._matcher: GrammarMatcher | None = None
        self._num_followed = 0  # tokens of the answer
        self._rows = torch.zeros((0, num_words), dtype=torch.int32)  # a mask per draft
        self._seconds = 0.0  # CPU time
        self._last: LookAhead | None = None
        self._has_ended = False  # the only field that a step may write at any time

    def start(
        self, tokens: Sequence[int], draft_ids: Sequence[int], quick: Executor, slow: Executor
    ) -> LookAhead | None:
        """Start looking ahead on a pool; None if this is not possible now.

        `tokens`: the whole answer so far. The grammar must allow the first draft after it.
        """
        if self._has_ended or (self._last is not None and not self._last.done.done()):
            return None
        new_ids = tuple(tokens[self._num_followed :])
        is_compiled = self._matcher is not None or self._compiled.seconds <= SLOW_SECONDS
        pool = quick if is_compiled and len(new_ids) <= QUICK_TOKENS else slow
        look = self._last = LookAhead()
        pool.submit(self._guarded, look, new_ids, tuple(draft_ids))
        return look

    def end(self) -> None:
        self._has_ended = True

    # -- on a pool thread ----------------------------------------------------------------------------------

    def _guarded(self, look: LookAhead, new_ids: Sequence[int], draft_ids: Sequence[int]) -> None:
        began = time.thread_time()
        try:
            self._follow(new_ids)
            self._look(look, draft_ids)
        except GrammarError:
            self._has_ended = True
        except Exception:
            logger.exception("failed to look ahead in a grammar")
            self._has_ended = True
        self._seconds += time.thread_time() - began
        self._has_ended = self._has_ended or self._seconds > AHEAD_SECONDS
        if self._has_ended:
            self._matcher = None
        look.done.set_result(None)

    def _follow(self, new_ids: Sequence[int]) -> None:
        """Catch up with the answer, with the queries that the other matcher makes.

        Its tables then have at least the same entries, so where the other one reaches a limit, this one does:
        no draft is accepted beyond.
        """
        if self._matcher is None:
            self._matcher = GrammarMatcher(self._compiled)
        for token_id in new_ids:
            if self._has_ended:
                return
            self._matcher.follow(token_id)
        self._num_followed += len(new_ids)

    def _look(self, look: LookAhead, draft_ids: Sequence[int]) -> None:
        if len(self._rows) < len(draft_ids):
            self._rows = self._rows.new_zeros((len(draft_ids), self._rows.shape[1]))
        matcher = self._matcher
        assert matcher is not None
        if matcher.has_ended:
            return
        matcher.fill(self._rows[0].data_ptr(), self._rows[0].nbytes)  # as the other matcher did
        for row, draft_id in zip(self._rows, draft_ids, strict=False):
            if look.is_over or self._has_ended or matcher.has_ended:
                break
            if look.masks and not allows(look.masks[-1], draft_id):
                break
            matcher.append(draft_id)
            began = time.thread_time()
            matcher.fill(row.data_ptr(), row.nbytes)
            look.masks.append(row)
            # Masks of other sequences wait for these.
            self._has_ended = self._has_ended or time.thread_time() - began > SLOW_SECONDS
        matcher.roll_back(len(look.masks))


def allows(mask: torch.Tensor, token_id: int) -> bool:
    return bool(int(mask[token_id // 32]) >> token_id % 32 & 1)
