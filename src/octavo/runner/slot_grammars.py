"""The grammars of a worker's slots. Steps do not wait for them: a sequence whose mask is late skips the step.

    step         |  forward  | draw |      |  forward  | draw |
                               a token |                 ^ the mask is ready, or the sequence skips the step
    grammar thread                     | append, forced tokens, mask of the next token |

A grammar has one job at a time: it is opened (compiled or taken from a cache, and advanced over the tokens
sampled before), then advanced by the tokens of each step. What may follow drafts is found beside that, with
another matcher: see `grammar_ahead`. llguidance releases the interpreter lock for long operations. There are
two thread pools: a quick one for jobs of about a millisecond, and one with lower CPU priority for longer
jobs, so that neither tokens nor other grammars wait for these.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from octavo.errors import GrammarError, GrammarTooComplex
from octavo.grammar.compiler import CompiledGrammar, compile_grammar
from octavo.grammar.limits import KNOWN_BYTES, estimated_bytes
from octavo.grammar.lru import ByteBoundedLru
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary
from octavo.plan import SlotOpening, StepPlan
from octavo.protocol import Failure, FailureCode, GrammarSpec
from octavo.runner.grammar_ahead import QUICK_TOKENS, SLOW_SECONDS, GrammarAhead, LookAhead, allows
from octavo.sampling.row_error import SAMPLING_FAILED

logger = logging.getLogger(__name__)

MAX_FORCED = 32  # tokens at a time: they are computed in one step, which delays other sequences
POOL_THREADS = 2
SLOW_NICENESS = 5
QUICK_BYTES = 8 << 10  # up to this length, most grammars compile in a few milliseconds
BUDGET_SECONDS = 60.0  # CPU time for all tokens of one sequence
IDLE_SECONDS = 0.005  # maximum wait of an empty step for a mask
BEGIN_SECONDS = (
    0.001  # maximum wait of a step with drafts: masks are often filled but not yet marked as ready
)

OVER_BUDGET = Failure(
    FailureCode.GRAMMAR_TOO_COMPLEX,
    f"The grammar of this request took more than {BUDGET_SECONDS:.0f} s of processor time for one answer. "
    "Simplify it: use fewer alternatives with a common beginning, and smaller repeat counts.",
)


@dataclass(frozen=True)
class AllowedTokens:
    """The tokens that a slot may sample now."""

    mask: torch.Tensor | None = None  # None: any token
    forced: tuple[int, ...] = ()  # these follow without sampling: see `mark_forced_reported`
    failure: Failure | None = None  # the answer cannot continue


ANY = AllowedTokens()


class SlotGrammar:
    """The grammar of one sequence. Owned by a pool thread until `ready` is done, then by the step."""

    def __init__(self, num_words: int) -> None:
        self.mask = torch.zeros(num_words, dtype=torch.int32)
        self.compiled: CompiledGrammar | None = None
        self.matcher: GrammarMatcher | None = None
        self.token_ids: list[int] = []  # which the matcher has consumed
        self.failure: Failure | None = None
        self.forced: Future[tuple[int, ...]] = Future()  # tokens that must follow the last sampled one
        self.unreported: tuple[int, ...] = ()  # forced tokens that are not reported to the scheduler yet
        self.ready: Future[None] = Future()  # done when the mask of the next token is filled
        self.seconds = 0.0  # CPU time
        self.is_slow = False  # because of a slow mask: from then on its jobs run on the slow pool
        # These belong to the step at any time:
        self.is_closed = False
        self.ahead: GrammarAhead | None = None  # from the first draft on
        self.look: LookAhead | None = None  # at the drafts of this step


class SlotGrammars:
    """Mutated by ModelRunner only. A closed slot keeps no state of its owner."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary], vocab_size: int) -> None:
        """`make_vocabulary` takes about a second, and holds the interpreter lock for part of it. It is called
        on a pool thread, by `prepare` or with the first grammar."""
        self._make_vocabulary = make_vocabulary
        self._num_words = -(-vocab_size // 32)
        self._slots: dict[int, SlotGrammar] = {}
        self._late: set[int] = set()  # slots that skipped a step and may have to skip more
        self._quick = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="octavo-grammar")
        self._slow = ThreadPoolExecutor(POOL_THREADS, "octavo-grammar-slow", initializer=_lower_priority)
        self._compiled_lock = threading.Lock()  # held only briefly
        self._compiled: ByteBoundedLru[GrammarSpec, CompiledGrammar] = ByteBoundedLru(KNOWN_BYTES)
        self._vocabulary_lock = threading.Lock()  # held while the vocabulary is made
        self._cached_vocabulary: Vocabulary | None = None
        self._prepared: Future[Vocabulary] | None = None

    def prepare(self, until_done: bool) -> None:
        """Start making what the first grammar needs, at a time when no request waits for a token."""
        if self._prepared is None:
            self._prepared = self._slow.submit(self._vocabulary)
        if until_done:
            wait((self._prepared,))

    @property
    def is_empty(self) -> bool:
        return not self._slots

    def begin(self, plan: StepPlan) -> None:
        """Apply the slot changes of the plan, and start to look ahead at its drafts."""
        for slot in plan.closed:
            self._close(slot)
        for opening in plan.opened:
            self._close(opening.slot)
            if opening.params.grammar is not None:
                self._open(opening, opening.params.grammar)
        until = time.monotonic() + BEGIN_SECONDS
        for piece in plan.slices:
            grammar = self._slots.get(piece.slot)
            if piece.num_drafted and grammar is not None:
                grammar.look = self._look_ahead(grammar, piece.draft_ids, until)

    def allowed(self, slot: int, until: float) -> AllowedTokens | None:
        """Return what the slot may sample now; None if that is not known in time."""
        grammar = self._slots.get(slot)
        if grammar is None:
            return ANY
        if not _is_done(grammar.ready, until):
            self._late.add(slot)
            return None
        self._late.discard(slot)
        if grammar.failure is not None:
            return AllowedTokens(failure=grammar.failure)
        return AllowedTokens(forced=grammar.unreported) if grammar.unreported else AllowedTokens(grammar.mask)

    def allowed_ahead(self, slot: int, num_drafted: int, until: float) -> tuple[AllowedTokens, ...]:
        """Return what the slot may sample after draft 1, 2, ..., as far as that is known in time.

        It is not known for tokens after a draft that the grammar does not allow.
        """
        grammar = self._slots.get(slot)
        if grammar is None:
            return (ANY,) * num_drafted
        if not num_drafted or grammar.look is None:
            return ()
        _is_done(grammar.look.done, until)  # otherwise, the masks so far can be used
        known = tuple(map(AllowedTokens, grammar.look.masks))
        grammar.look.is_over = True
        return known

    def append(self, slot: int, token_ids: Sequence[int], *, jump: bool) -> bool:
        """Advance the grammar by sampled tokens, and with `jump` by the tokens that must follow the last one.

        Return False if the slot has no grammar.
        """
        grammar = self._slots.get(slot)
        if grammar is None:
            return False
        grammar.forced, grammar.ready = Future(), Future()
        if grammar.is_slow:
            self._late.add(slot)
        self._submit(grammar, self._advance, tuple(token_ids), MAX_FORCED if jump else 0)
        return True

    def forced(self, slot: int, until: float) -> tuple[int, ...]:
        """Return the tokens that must follow the appended one, if they are known in time.

        If they become known later, they replace the next sampled token.
        """
        grammar = self._slots[slot]
        return () if slot in self._late or not _is_done(grammar.forced, until) else grammar.unreported

    def mark_forced_reported(self, slot: int) -> None:
        """Note that the forced tokens are in the step's result, as if they had been sampled."""
        self._slots[slot].unreported = ()

    def late(self, *, idle: bool) -> tuple[int, ...]:
        """Return the slots that cannot sample a token yet. With `idle`, wait up to IDLE_SECONDS for one."""
        waiting = {slot: self._slots[slot].ready for slot in self._late}
        if idle and waiting:
            wait(waiting.values(), timeout=IDLE_SECONDS, return_when=FIRST_COMPLETED)
        self._late = {slot for slot, ready in waiting.items() if not ready.done()}
        return tuple(sorted(self._late))

    def _open(self, opening: SlotOpening, spec: GrammarSpec) -> None:
        grammar = self._slots[opening.slot] = SlotGrammar(self._num_words)
        drawn = opening.token_ids[opening.num_prompt :]
        with self._compiled_lock:
            compiled = self._compiled.get(spec)
        compiles_slowly = (
            len(spec.text) > QUICK_BYTES if compiled is None else compiled.seconds > SLOW_SECONDS
        )
        grammar.is_slow = len(drawn) > QUICK_TOKENS or compiles_slowly
        self._submit(grammar, self._start_matcher, spec, drawn)
        grammar.is_slow = False  # from now on, decided by the time of its masks

    def _close(self, slot: int) -> None:
        self._late.discard(slot)
        grammar = self._slots.pop(slot, None)
        if grammar is not None:
            grammar.is_closed = True
            if grammar.ahead is not None:
                grammar.ahead.end()

    def _look_ahead(self, grammar: SlotGrammar, draft_ids: Sequence[int], until: float) -> LookAhead | None:
        """Start to look ahead, unless the grammar is at work or slow, or no draft can be accepted."""
        if grammar.is_slow or not _is_done(grammar.ready, until):
            return None
        if grammar.failure is not None or grammar.compiled is None or grammar.unreported:
            return None
        if not allows(grammar.mask, draft_ids[0]):
            return None
        if grammar.ahead is None:
            grammar.ahead = GrammarAhead(grammar.compiled, self._num_words)
        return grammar.ahead.start(grammar.token_ids, draft_ids, self._quick, self._slow)

    def _submit(self, grammar: SlotGrammar, work: Callable[..., None], *arguments: object) -> None:
        pool = self._slow if grammar.is_slow else self._quick
        pool.submit(self._guarded, grammar, grammar.forced, grammar.ready, work, *arguments)

    # -- on a pool thread ----------------------------------------------------------------------------------

    def _guarded(
        self,
        grammar: SlotGrammar,
        forced: "Future[tuple[int, ...]]",
        ready: "Future[None]",
        work: Callable[..., None],
        *arguments: object,
    ) -> None:
        """Do the work. An exception becomes the failure of this grammar, reported with its next mask."""
        began = time.thread_time()
        try:
            if not grammar.is_closed and grammar.failure is None:
                work(grammar, *arguments)
        except GrammarTooComplex as error:
            grammar.failure = Failure(FailureCode.GRAMMAR_TOO_COMPLEX, str(error))
        except GrammarError as error:
            grammar.failure = Failure(FailureCode.ENGINE_FAILED, str(error))
        except Exception:
            logger.exception("failed to follow a grammar")
            grammar.failure = SAMPLING_FAILED
        grammar.seconds += time.thread_time() - began
        if grammar.failure is None and grammar.seconds > BUDGET_SECONDS:
            grammar.failure = OVER_BUDGET
        if not forced.done():
            forced.set_result(())
        ready.set_result(None)

    def _start_matcher(self, grammar: SlotGrammar, spec: GrammarSpec, drawn: Sequence[int]) -> None:
        with self._compiled_lock:
            compiled = self._compiled.get(spec)
        if compiled is None:
            compiled = compile_grammar(spec, self._vocabulary())
            with self._compiled_lock:
                self._compiled.put(spec, compiled, estimated_bytes(spec))
        grammar.compiled = compiled
        grammar.matcher = matcher = GrammarMatcher(compiled)
        for token_id in drawn:
            if grammar.is_closed:
                return
            matcher.follow(token_id)
        grammar.token_ids = list(drawn)
        self._fill(grammar)

    def _vocabulary(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._cached_vocabulary is None:
                self._cached_vocabulary = self._make_vocabulary()
            return self._cached_vocabulary

    def _advance(self, grammar: SlotGrammar, token_ids: Sequence[int], max_forced: int) -> None:
        """Make the same queries as if the tokens came one by one. Those before the first one were made."""
        assert grammar.matcher is not None
        grammar.matcher.append(token_ids[0])
        for token_id in token_ids[1:]:
            grammar.matcher.follow(token_id)
        grammar.unreported = tuple(grammar.matcher.append_forced(max_forced))
        grammar.token_ids += (*token_ids, *grammar.unreported)
        grammar.forced.set_result(grammar.unreported)
        self._fill(grammar)

    def _fill(self, grammar: SlotGrammar) -> None:
        assert grammar.matcher is not None
        began = time.thread_time()
        grammar.matcher.fill(grammar.mask.data_ptr(), grammar.mask.nbytes)
        grammar.is_slow = grammar.is_slow or time.thread_time() - began > SLOW_SECONDS


def _is_done(future: "Future[Any]", until: float) -> bool:
    if not future.done():
        wait((future,), timeout=max(0.0, until - time.monotonic()))
    return future.done()


def _lower_priority() -> None:
    """Give this thread a lower priority than sampling. Only on Linux, where each thread has its own.

    The priority is relative: the engine may have a low one already, and may not raise that of a thread.
    """
    if sys.platform == "linux":
        os.nice(SLOW_NICENESS)
