"""The grammars of a worker's slots. No step waits for them: a sequence whose mask is late sits the step out.

    step         |  forward  | draw |      |  forward  | draw |
                               a token |                 ^ the mask is there, or the sequence sits out
    a lane                             | append, what is forced, mask of the next token |

A grammar has one piece of work at a time: it is opened (compiled or found compiled, and led through the
tokens drawn before), then advanced by each token that is drawn. llguidance lets go of the interpreter's lock
for what takes long. There are two lanes: a quick one for work of a millisecond or so, and one with less of
the processor for what takes longer, so that neither tokens nor other grammars wait for it.
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
from octavo.sampling.row_error import SAMPLING_FAILED

logger = logging.getLogger(__name__)

MOST_FORCED = 32  # tokens at a time: they are computed in one step, which others wait for
LANE_THREADS = 2
SLOW_NICENESS = 5
SLOW_SECONDS = 0.005  # of one token: such a grammar is in the slow lane from then on
QUICK_BYTES = 8 << 10  # a grammar with so little text is mostly compiled in a few milliseconds
QUICK_TOKENS = 64  # and led through so few tokens as quickly
BUDGET_SECONDS = 60.0  # of processor time, for all tokens of one sequence
IDLE_SECONDS = 0.005  # how long a step with nothing to compute waits for a mask

OVER_BUDGET = Failure(
    FailureCode.GRAMMAR_TOO_COMPLEX,
    f"The grammar of this request took more than {BUDGET_SECONDS:.0f} s of processor time for one answer. "
    "Make it simpler: fewer alternatives that begin alike, smaller repeat counts.",
)


@dataclass(frozen=True)
class Allowed:
    """What a slot may draw now."""

    mask: torch.Tensor | None = None  # None: any token
    forced: tuple[int, ...] = ()  # these, and nothing is drawn: see `tell_forced`
    failure: Failure | None = None  # the answer cannot go on


ANY = Allowed()


class SlotGrammar:
    """Of one sequence. A lane's thread has it until `ready` is done, and then the step does."""

    def __init__(self, num_words: int) -> None:
        self.mask = torch.zeros(num_words, dtype=torch.int32)
        self.matcher: GrammarMatcher | None = None
        self.failure: Failure | None = None
        self.forced: Future[tuple[int, ...]] = Future()  # what must follow the token drawn last
        self.untold: tuple[int, ...] = ()  # of these, what the scheduler does not know yet
        self.ready: Future[None] = Future()  # the mask of the token after those
        self.seconds = 0.0  # of processor time
        self.is_slow = False
        self.is_closed = False  # the only thing that a step may write at any time


class SlotGrammars:
    """Mutated by ModelRunner only. Nothing of an owner survives in a slot that was closed."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary], vocab_size: int) -> None:
        """`make_vocabulary` takes a second or so, and holds the interpreter's lock for part of it. It is
        called on a lane, by `prepare` or with the first grammar."""
        self._make_vocabulary = make_vocabulary
        self._num_words = -(-vocab_size // 32)
        self._slots: dict[int, SlotGrammar] = {}
        self._late: set[int] = set()  # slots that sat a step out and still may have to
        self._quick = ThreadPoolExecutor(LANE_THREADS, thread_name_prefix="octavo-grammar")
        self._slow = ThreadPoolExecutor(LANE_THREADS, "octavo-grammar-slow", initializer=_yield_to_others)
        self._compiled_lock = threading.Lock()  # never held for long
        self._compiled: ByteBoundedLru[GrammarSpec, CompiledGrammar] = ByteBoundedLru(KNOWN_BYTES)
        self._vocabulary_lock = threading.Lock()  # held while it is made
        self._made: Vocabulary | None = None
        self._prepared: Future[Vocabulary] | None = None

    def prepare(self, until_done: bool) -> None:
        """While nobody waits for a token: what the first grammar needs."""
        if self._prepared is None:
            self._prepared = self._slow.submit(self._vocabulary)
        if until_done:
            wait((self._prepared,))

    @property
    def is_empty(self) -> bool:
        return not self._slots

    def begin(self, plan: StepPlan) -> None:
        """Take in what the plan says has changed."""
        for slot in plan.closed:
            self._close(slot)
        for opening in plan.opened:
            self._close(opening.slot)
            if opening.params.grammar is not None:
                self._open(opening, opening.params.grammar)

    def allowed(self, slot: int, until: float) -> Allowed | None:
        """For the token that this slot draws now; None if that is not known in time."""
        grammar = self._slots.get(slot)
        if grammar is None:
            return ANY
        if not _is_done(grammar.ready, until):
            self._late.add(slot)
            return None
        self._late.discard(slot)
        if grammar.failure is not None:
            return Allowed(failure=grammar.failure)
        return Allowed(forced=grammar.untold) if grammar.untold else Allowed(grammar.mask)

    def append(self, slot: int, token_id: int, *, jump: bool) -> bool:
        """`token_id` was drawn and stays. With `jump` so do those that must follow. False: any token may."""
        grammar = self._slots.get(slot)
        if grammar is None:
            return False
        grammar.forced, grammar.ready = Future(), Future()
        if grammar.is_slow:
            self._late.add(slot)
        self._submit(grammar, self._advance, token_id, MOST_FORCED if jump else 0)
        return True

    def forced(self, slot: int, until: float) -> tuple[int, ...]:
        """What must follow the token that was appended, if that is known in time. Should it come to be known
        later, it takes the place of the next token that is drawn."""
        grammar = self._slots[slot]
        return () if slot in self._late or not _is_done(grammar.forced, until) else grammar.untold

    def tell_forced(self, slot: int) -> None:
        """They are in the step's result, as if they had been drawn."""
        self._slots[slot].untold = ()

    def late(self, *, idle: bool) -> tuple[int, ...]:
        """Slots that cannot draw a token yet. With nothing else to do, wait a moment for one that can."""
        waiting = {slot: self._slots[slot].ready for slot in self._late}
        if idle and waiting:
            wait(waiting.values(), timeout=IDLE_SECONDS, return_when=FIRST_COMPLETED)
        self._late = {slot for slot, ready in waiting.items() if not ready.done()}
        return tuple(sorted(self._late))

    def _open(self, opening: SlotOpening, spec: GrammarSpec) -> None:
        grammar = self._slots[opening.slot] = SlotGrammar(self._num_words)
        drawn = opening.token_ids[opening.num_prompt :]
        with self._compiled_lock:
            is_compiled = self._compiled.get(spec) is not None
        grammar.is_slow = len(drawn) > QUICK_TOKENS or not (is_compiled or len(spec.text) <= QUICK_BYTES)
        self._submit(grammar, self._enter, spec, drawn)
        grammar.is_slow = False  # which only its masks can show

    def _close(self, slot: int) -> None:
        self._late.discard(slot)
        grammar = self._slots.pop(slot, None)
        if grammar is not None:
            grammar.is_closed = True

    def _submit(self, grammar: SlotGrammar, work: Callable[..., None], *arguments: object) -> None:
        lane = self._slow if grammar.is_slow else self._quick
        lane.submit(self._guarded, grammar, grammar.forced, grammar.ready, work, *arguments)

    # -- on a lane -----------------------------------------------------------------------------------------

    def _guarded(
        self,
        grammar: SlotGrammar,
        forced: "Future[tuple[int, ...]]",
        ready: "Future[None]",
        work: Callable[..., None],
        *arguments: object,
    ) -> None:
        """What goes wrong with a slot's grammar is told with its next mask, and to nobody else."""
        began = time.thread_time()
        try:
            if not grammar.is_closed and grammar.failure is None:
                work(grammar, *arguments)
        except GrammarTooComplex as error:
            grammar.failure = Failure(FailureCode.GRAMMAR_TOO_COMPLEX, str(error))
        except GrammarError as error:
            grammar.failure = Failure(FailureCode.ENGINE_FAILED, str(error))
        except Exception:
            logger.exception("a grammar failed")
            grammar.failure = SAMPLING_FAILED
        grammar.seconds += time.thread_time() - began
        if grammar.failure is None and grammar.seconds > BUDGET_SECONDS:
            grammar.failure = OVER_BUDGET
        if not forced.done():
            forced.set_result(())
        ready.set_result(None)

    def _enter(self, grammar: SlotGrammar, spec: GrammarSpec, drawn: Sequence[int]) -> None:
        with self._compiled_lock:
            compiled = self._compiled.get(spec)
        if compiled is None:
            compiled = compile_grammar(spec, self._vocabulary())
            with self._compiled_lock:
                self._compiled.put(spec, compiled, estimated_bytes(spec))
        grammar.matcher = matcher = GrammarMatcher(compiled)
        for token_id in drawn:
            if grammar.is_closed:
                return
            matcher.follow(token_id)
        self._fill(grammar)

    def _vocabulary(self) -> Vocabulary:
        with self._vocabulary_lock:
            if self._made is None:
                self._made = self._make_vocabulary()
            return self._made

    def _advance(self, grammar: SlotGrammar, token_id: int, most_forced: int) -> None:
        assert grammar.matcher is not None
        grammar.matcher.append(token_id)
        grammar.untold = tuple(grammar.matcher.append_forced(most_forced))
        grammar.forced.set_result(grammar.untold)
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


def _yield_to_others() -> None:
    """Of a thread: tokens come first. (On Linux, threads have priorities of their own.)"""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SLOW_NICENESS)
