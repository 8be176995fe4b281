"""The grammars of a worker's slots, and the masks of a step, which are made while the model computes.

One thread does all of it, in order: to open a slot's grammar (compile it or find it compiled, and go through
the tokens drawn before), then to fill its mask whenever it draws a token. llguidance lets go of the
interpreter's lock, and so does the native forward pass: what is left is to wait for a mask that is late.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from octavo.errors import GrammarError, GrammarTooComplex
from octavo.grammar.compiler import CompiledGrammar, compile_grammar
from octavo.grammar.lru import ByteBoundedLru
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.vocabulary import Vocabulary
from octavo.plan import SlotOpening, StepPlan
from octavo.protocol import Failure, FailureCode, GrammarSpec
from octavo.sampling.row_error import SAMPLING_FAILED

logger = logging.getLogger(__name__)

MOST_FORCED = 32  # tokens at a time: they are computed in one step, which others wait for
COMPILED_BYTES = 64 * 1024 * 1024


class SlotGrammar:
    """Of one sequence. Touched on the thread only, but for `mask` once `ready` is done."""

    def __init__(self, num_words: int) -> None:
        self.mask = torch.zeros(num_words, dtype=torch.int32)
        self.matcher: GrammarMatcher | None = None
        self.ready: Future[None] | None = None  # the mask of this step
        self.failure: Failure | None = None


class SlotGrammars:
    """Mutated by ModelRunner only. Nothing of an owner survives in a slot that was closed."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary], vocab_size: int) -> None:
        """`make_vocabulary` takes a second or two, and holds the interpreter's lock for most of it. It is
        called on the thread, by `prepare` or with the first grammar."""
        self._make_vocabulary = make_vocabulary
        self._num_words = -(-vocab_size // 32)
        self._slots: dict[int, SlotGrammar] = {}
        self._compiled: ByteBoundedLru[GrammarSpec, CompiledGrammar] = ByteBoundedLru(COMPILED_BYTES)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar")
        self._made: Vocabulary | None = None
        self._is_prepared = False

    def prepare(self) -> None:
        """While nobody waits for a token: what the first grammar needs."""
        if not self._is_prepared:
            self._is_prepared = True
            self._thread.submit(self._vocabulary)

    def begin(self, plan: StepPlan) -> None:
        """Take in what the plan says has changed, and begin with the masks of the rows that draw a token."""
        for slot in plan.closed:
            self._slots.pop(slot, None)
        for opening in plan.opened:
            self._slots.pop(opening.slot, None)
            if opening.params.grammar is not None:
                grammar = self._slots[opening.slot] = SlotGrammar(self._num_words)
                self._thread.submit(self._guarded, grammar, self._open, opening)
        if self._slots:
            for piece in plan.slices:
                drawing = self._slots.get(piece.slot)
                if drawing is not None and piece.num_sampled:
                    drawing.ready = self._thread.submit(self._guarded, drawing, self._fill)

    def mask(self, slot: int) -> torch.Tensor | None:
        """Of the token that this slot draws now; None if it may draw any. With a failure it means nothing."""
        grammar = self._slots.get(slot)
        if grammar is None:
            return None
        assert grammar.ready is not None, "a slot draws a token that the plan did not speak of"
        grammar.ready.result()
        return grammar.mask

    def failure(self, slot: int) -> Failure | None:
        """Why the slot's answer cannot go on. To be asked after `mask`."""
        grammar = self._slots.get(slot)
        return None if grammar is None else grammar.failure

    def append(self, slot: int, token_id: int, *, jump: bool) -> "Future[list[int]] | None":
        """`token_id` was drawn and stays. With `jump` so do those that must follow, which are the result."""
        grammar = self._slots.get(slot)
        if grammar is None:
            return None
        return self._thread.submit(self._append, grammar, token_id, MOST_FORCED if jump else 0)

    # -- on the thread -------------------------------------------------------------------------------------

    def _guarded(self, grammar: SlotGrammar, work: Callable[..., None], *arguments: object) -> None:
        """What goes wrong with a slot's grammar is told with its next mask, and to nobody else."""
        if grammar.failure is not None:
            return
        try:
            work(grammar, *arguments)
        except GrammarTooComplex as error:
            grammar.failure = Failure(FailureCode.GRAMMAR_TOO_COMPLEX, str(error))
        except GrammarError as error:
            grammar.failure = Failure(FailureCode.ENGINE_FAILED, str(error))
        except Exception:
            logger.exception("a grammar failed")
            grammar.failure = SAMPLING_FAILED

    def _open(self, grammar: SlotGrammar, opening: SlotOpening) -> None:
        spec = opening.params.grammar
        assert spec is not None
        compiled = self._compiled.get(spec)
        if compiled is None:
            compiled = compile_grammar(spec, self._vocabulary())
            self._compiled.put(spec, compiled, compiled.num_bytes)
        grammar.matcher = GrammarMatcher(compiled, opening.token_ids[opening.num_prompt :])

    def _vocabulary(self) -> Vocabulary:
        if self._made is None:
            self._made = self._make_vocabulary()
        return self._made

    def _fill(self, grammar: SlotGrammar) -> None:
        assert grammar.matcher is not None
        grammar.matcher.fill(grammar.mask.data_ptr(), grammar.mask.nbytes)

    def _append(self, grammar: SlotGrammar, token_id: int, most_forced: int) -> list[int]:
        forced: list[int] = []

        def append(grammar: SlotGrammar) -> None:
            assert grammar.matcher is not None
            grammar.matcher.append(token_id)
            forced.extend(grammar.matcher.append_forced(most_forced))

        self._guarded(grammar, append)
        return forced
