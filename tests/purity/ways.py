"""Ways to run requests, and the plain run that all of them must equal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from octavo import LLM, RequestOutput, SamplingParams
from octavo.cache import KVManager
from octavo.plan import StepPlan, StepResult
from octavo.protocol import TokenLogprob
from octavo.schedule import UNLIMITED, DraftPolicy, Scheduler, SchedulerConfig
from purity.first_difference import Steps, first_difference
from purity.known_answers import KnownAnswers

CHUNKS = (1, 16, 33, 128, 512)
SLOTS = 32
KEPT_STEPS = 2  # in one step, lost sequences are computed again; the next one may have drafts


@dataclass(frozen=True)
class Request:
    """A request with its own seed, by which it is identified."""

    prompt: list[int]
    params: SamplingParams

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + (self.params.max_tokens or 0)


@dataclass(frozen=True)
class Answer:
    """The parts of a choice that must be equal."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]


Answers = list[list[Answer]]  # indexed by request and choice
Manner = Callable[[LLM, Sequence[Request], Answers], Answers]


def answers_of(outputs: Sequence[RequestOutput]) -> Answers:
    return [[Answer(c.token_ids, c.text, c.logprobs or ()) for c in output.choices] for output in outputs]


# -- manners: how requests are sent to the engine. They get the plain answers, which `resumed` needs. --------


def one_by_one(llm: LLM, requests: Sequence[Request], expected: Answers) -> Answers:
    return answers_of([llm.generate([request.prompt], request.params)[0] for request in requests])


def together(llm: LLM, requests: Sequence[Request], expected: Answers) -> Answers:
    return answers_of(llm.generate([r.prompt for r in requests], [r.params for r in requests]))


def joining(llm: LLM, requests: Sequence[Request], expected: Answers) -> Answers:
    """Add one request per step."""
    return _arriving(llm, requests, steps_between=1, urgency=0)


def preempted(llm: LLM, requests: Sequence[Request], expected: Answers) -> Answers:
    """Each request is more urgent than the earlier ones and preempts them."""
    before = llm.stats().preemptions
    answers = _arriving(llm, requests, steps_between=1, urgency=1)
    assert llm.stats().preemptions > before, llm.stats()
    return answers


def losing_steps(llm: LLM, requests: Sequence[Request], expected: Answers) -> Answers:
    """Steps are lost as if the workers had died, before or after they executed them."""
    core = llm._channel._open_core
    execute = core._execute
    core._execute = workers = DyingWorkers(execute, llm.facts.block_size)
    try:
        answers = _arriving(llm, requests, steps_between=0, urgency=0)
    finally:
        core._execute = execute
    assert workers.num_lost > 0
    return answers


class DyingWorkers:
    """Wraps the workers. Every few steps, a result is lost; every other such step was executed before.

    A step with a slice that begins at the end of a block is lost sooner, and not executed: if the scheduler
    had taken that block for complete, the next one would not repair it.
    """

    def __init__(self, execute: Callable[[StepPlan], StepResult], block_size: int) -> None:
        self._execute = execute
        self._block_size = block_size
        self._num_kept = 0  # steps since the last loss
        self.num_lost = 0

    def __call__(self, plan: StepPlan) -> StepResult:
        at_block_end = any((piece.start + 1) % self._block_size == 0 for piece in plan.slices)
        is_lost = self._num_kept >= (KEPT_STEPS if at_block_end else 2 * KEPT_STEPS)
        self._num_kept = 0 if is_lost else self._num_kept + 1
        self.num_lost += is_lost
        if is_lost and (at_block_end or self.num_lost % 2):
            raise KeyboardInterrupt
        result = self._execute(plan)
        if is_lost:
            raise KeyboardInterrupt
        return result


def _arriving(llm: LLM, requests: Sequence[Request], *, steps_between: int, urgency: int) -> Answers:
    finished: dict[str, RequestOutput] = {}

    def step() -> None:
        try:
            update = llm.step()
        except KeyboardInterrupt:  # by `losing_steps`
            return
        finished.update({output.request_id: output for output in update.finished})

    for number, request in enumerate(requests):
        llm.add_request(request.prompt, request.params, request_id=str(number), priority=-number * urgency)
        for _ in range(steps_between):
            step()
    while llm.has_unfinished:
        step()
    return answers_of([finished[str(number)] for number in range(len(requests))])


def resumed(llm: LLM, requests: Sequence[Request], expected: Answers) -> Answers:
    """Resume as after a crash: half of the tokens were sent, and a new engine computes the rest."""
    prepared = []
    for request, answers in zip(requests, expected, strict=True):
        whole = llm._prepare_one(request.prompt, request.params)
        messages = [
            msgspec.structs.replace(message, resume_ids=answer.token_ids[: len(answer.token_ids) // 2])
            for message, answer in zip(whole.messages, answers, strict=True)
        ]
        prepared.append(replace(whole, messages=tuple(messages)))
    rest = answers_of(llm._run(prepared, False))
    return [
        [_joined(one, two) for one, two in zip(*choices, strict=True)]
        for choices in zip(expected, rest, strict=True)
    ]


def _joined(whole: Answer, rest: Answer) -> Answer:
    half = len(whole.token_ids) // 2
    return Answer(whole.token_ids[:half] + rest.token_ids, whole.text, whole.logprobs[:half] + rest.logprobs)


# -- ways ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    manner: Manner
    chunk: int  # maximum tokens per step; 0: no limit
    threads: int = 2
    tape: bool = True
    slots: int = SLOTS
    caching: bool = True  # runs everything twice, with a cold and a warm cache
    spare_blocks: int | None = None  # blocks beyond the need of the longest request; None: enough for all
    drafts: bool = False  # draft tokens from the plain answers, right and wrong ones
    draft_model: bool = False  # the model drafts for itself, and is right; some tokens are drafted at random
    first: int = 0  # to save time, run only requests[first::every]
    every: int = 1

    def __str__(self) -> str:
        words = [
            self.manner.__name__.replace("_", " "),
            f"chunks of {self.chunk or 'any size'}",
            f"{min(self.slots, self.chunk or self.slots)} slots",
            f"{self.threads} threads",
            "tape" if self.tape else "eager",
            "caching" if self.caching else "no cache",
        ]
        words += [] if self.spare_blocks is None else [f"{self.spare_blocks} spare blocks"]
        words += ["drafts"] if self.drafts else []
        words += ["a draft model"] if self.draft_model else []
        return ", ".join(words)


PLAIN = Way(one_by_one, chunk=0, threads=1, tape=False, caching=False)

# Every element of the guarantee at least once, and most pairs of elements.
WAYS = (
    Way(together, chunk=512),
    Way(joining, chunk=33, every=3),
    Way(preempted, chunk=16, slots=3, first=2, every=3),
    Way(together, chunk=128, spare_blocks=4, caching=False, every=3),
    Way(resumed, chunk=128, every=3),
    Way(one_by_one, chunk=1, first=1, every=7),
    Way(together, chunk=128, drafts=True, first=1, every=2),
    Way(losing_steps, chunk=512, drafts=True, every=5),
    Way(joining, chunk=128, draft_model=True, first=3, every=6),
)
# For tiny models, where another engine costs little.
MORE_WAYS = (
    Way(together, chunk=33, threads=1),
    Way(joining, chunk=512, tape=False),
    Way(preempted, chunk=128, slots=3, threads=1, caching=False),
    Way(resumed, chunk=16, threads=1, tape=False),
    Way(together, chunk=0, threads=1, caching=False, drafts=True),
    Way(joining, chunk=33, tape=False, drafts=True),
    Way(preempted, chunk=128, slots=3, drafts=True),
    Way(resumed, chunk=512, spare_blocks=4, drafts=True),
    Way(together, chunk=128, draft_model=True),
    Way(preempted, chunk=33, slots=3, draft_model=True, first=1, every=2),
    Way(losing_steps, chunk=512, spare_blocks=4, draft_model=True, every=2),
)
ALL_WAYS_WITHOUT_DRAFTS = tuple(
    Way(manner, chunk, threads, tape, slots, caching, spare)
    for manner, chunk, threads, tape, caching, spare in product(
        (one_by_one, together, joining, preempted, resumed),
        CHUNKS,
        (1, 2),
        (True, False),
        (True, False),
        (None, 4),
    )
    for slots in [3 if manner is preempted else SLOTS]
    if not (manner is preempted and (chunk == 1 or spare))  # no sequence to preempt, or too many
)
ALL_WAYS = (
    *ALL_WAYS_WITHOUT_DRAFTS,
    *(replace(way, drafts=True) for way in ALL_WAYS_WITHOUT_DRAFTS if way.chunk > 1 and way.threads > 1),
    *(Way(losing_steps, chunk, drafts=drafts) for chunk in (128, 512) for drafts in (True, False)),
    *(
        Way(manner, chunk, draft_model=True)
        for manner in (together, joining, preempted, resumed, losing_steps)
        for chunk in (33, 512)
    ),
)


# -- execution ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    answers: Answers
    steps: Steps
    num_accepted: int = 0  # drafts
    num_rejected: int = 0

    def only(self, numbers: Sequence[int]) -> "Run":
        return replace(self, answers=[self.answers[number] for number in numbers])

    @property
    def batch_sizes(self) -> set[int]:
        return {len(plan.slices) for plan in self.steps.plans}


class PlanRecorder:
    """Wraps the workers and records their plans."""

    def __init__(self, execute: Callable[[StepPlan], StepResult]) -> None:
        self._execute = execute
        self.plans: list[StepPlan] = []

    def __call__(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self._execute(plan)


class Model:
    """A checkpoint in one dtype on one instruction set. It is loaded once per number of threads, with and
    without tape. Every way gets a new scheduler and cache; blocks and weights are reused."""

    def __init__(
        self, path: Path, dtype: str, kernels: str, *, kv_memory: str = "64MiB", **options: Any
    ) -> None:
        """`options`: further options of `LLM`."""
        self.path, self.dtype, self.kernels = path, dtype, kernels
        self._options = {"kv_memory": kv_memory, **options}
        self._loaded: dict[tuple[int, bool, bool], LLM] = {}

    def run(self, way: Way, requests: Sequence[Request], expected: Answers | None = None) -> Run:
        llm = self._llm(way)
        core = llm._channel._open_core
        core._scheduler = self._scheduler(way, requests, expected or [], llm)
        recorder = core._execute = PlanRecorder(core._execute)
        try:
            answers = way.manner(llm, requests, expected or [])
            if way.caching:
                again = way.manner(llm, requests, expected or [])
                has_blocks = any(len(request.prompt) > llm.facts.block_size for request in requests)
                assert not has_blocks or llm.stats().prompt_tokens_cached > 0
                answers += again
        finally:
            core._execute = recorder._execute
        llm.check()
        facts, stats = llm.facts, llm.stats()
        return Run(
            answers,
            Steps(
                self.path,
                self.dtype,
                self.kernels,
                way.threads,
                facts.num_blocks,
                facts.block_size,
                recorder.plans,
            ),
            stats.tokens_accepted,
            stats.tokens_drafted - stats.tokens_accepted,
        )

    def _llm(self, way: Way) -> LLM:
        key = way.threads, way.tape, way.draft_model
        if key not in self._loaded:
            self._loaded[key] = LLM(
                str(self.path),
                dtype=self.dtype,
                kernels=self.kernels,
                threads=way.threads,
                tape=way.tape,
                speculate=f"draft:{self.path}" if way.draft_model else "off",
                progress=False,
                **self._options,
            )
        return self._loaded[key]

    @staticmethod
    def _scheduler(way: Way, requests: Sequence[Request], expected: Answers, llm: LLM) -> Scheduler:
        facts = llm.facts
        config = SchedulerConfig(
            max_running=min(way.slots, way.chunk or way.slots),
            max_model_len=facts.max_model_len,
            max_step_tokens=way.chunk or UNLIMITED,
            draft_context=facts.max_model_len if way.draft_model else 0,
            draft_policy=DraftPolicy.ALL,
        )
        blocks = facts.num_blocks
        if way.spare_blocks is not None:
            longest = max(request.num_tokens for request in requests)
            blocks = min(blocks, -(-longest // facts.block_size) + way.spare_blocks)
        kv = KVManager(blocks, facts.block_size, prefix_caching=way.caching)
        known = _known(requests, expected) if way.drafts else KnownAnswers([])  # the latter drafts at random
        return Scheduler(config, kv, known if way.drafts or way.draft_model else None)

    def close(self) -> None:
        for llm in self._loaded.values():
            llm.close()


def _known(requests: Sequence[Request], expected: Answers) -> KnownAnswers:
    return KnownAnswers(
        [
            [*request.prompt, *answer.token_ids]
            for request, answers in zip(requests, expected, strict=True)
            for answer in answers
        ]
    )


@contextmanager
def loaded(path: Path, dtype: str, kernels: str, **options: Any) -> Iterator[Model]:
    model = Model(path, dtype, kernels, **options)
    try:
        yield model
    finally:
        model.close()


def mismatch(found: Run, plain: Run, requests: Sequence[Request]) -> str | None:
    """Describe the first difference and the layer it starts in, or None. `found` may contain two runs."""
    for number, answers in enumerate(found.answers):
        request, expected = requests[number % len(requests)], plain.answers[number % len(requests)]
        for choice, (ours, theirs) in enumerate(zip(answers, expected, strict=True)):
            # repr is equal only if every bit is: it distinguishes -0.0 from 0.0.
            if repr(ours) != repr(theirs):
                differs = next(
                    field for field in ("token_ids", "logprobs", "text") if _differs(ours, theirs, field)
                )
                pairs = zip(ours.token_ids, theirs.token_ids, strict=False)
                same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(theirs.token_ids))
                tokens = [*request.prompt, *theirs.token_ids[:same]]
                cache = "warm" if number >= len(requests) else "cold"
                where = f"seed {request.params.seed}, choice {choice}, {cache} cache: {differs} differ"
                return f"{where}; {first_difference(plain.steps, found.steps, tokens)}"
    return None


def _differs(ours: Answer, theirs: Answer, field: str) -> bool:
    return repr(getattr(ours, field)) != repr(getattr(theirs, field))
