"""One choice of one request as its client sees it: what came, and what is still owed."""

import msgspec

from octavo.protocol import FinishReason, GenerateRequest, TokenOutput
from octavo.simulate.oracle import Answer


class Violation(AssertionError):
    """A rule was broken. The message names the seed and the step: the same seed breaks it again."""


class Ticket:
    __slots__ = (
        "answer",
        "born",
        "computed",
        "finish",
        "is_aborted",
        "key",
        "known",
        "leader",
        "num_emitted",
        "num_preemptions",
        "num_prompt",
        "num_prompt_computed",
        "num_scored",
        "request",
        "slot",
        "started",
        "was_restarted",
        "work_before",
    )

    def __init__(self, request: GenerateRequest, answer: Answer, order: int) -> None:
        self.request = request
        self.answer = answer
        self.key = (request.priority, order)
        self.num_prompt = len(request.prompt_ids)
        self.num_emitted = len(request.resume_ids)
        self.known = self.num_prompt + self.num_emitted  # tokens that exist
        self.num_scored = 0
        self.finish: FinishReason | None = None
        self.is_aborted = False
        self.was_restarted = bool(request.resume_ids)
        # As the workers see it.
        self.slot = -1
        self.computed = 0
        self.num_preemptions = 0
        self.num_prompt_computed = 0
        self.started = False  # gave a token since the engine started
        self.leader: Ticket | None = None
        # For the bound on its waiting time.
        self.born = 0
        self.work_before = 0

    @property
    def work(self) -> int:
        """Tokens it takes, if nothing is computed twice."""
        return self.num_prompt + len(self.answer.tokens)

    @property
    def is_complete(self) -> bool:
        """Has every token, perhaps by resuming: only the terminal output is owed."""
        return self.num_emitted == len(self.answer.tokens) and self.answer.finish is not FinishReason.ERROR

    def forget_engine(self) -> None:
        """The engine died. What the client has got is replayed; prompt scores come again."""
        resume_ids = self.answer.tokens[: self.num_emitted]
        self.request = msgspec.structs.replace(self.request, resume_ids=resume_ids)
        self.was_restarted, self.started = True, False
        self.slot, self.computed, self.num_preemptions, self.num_scored = -1, 0, 0, 0

    @property
    def is_parked(self) -> bool:
        """Waits for another choice to compute the prompt."""
        leader = self.leader
        return leader is not None and leader.finish is None and not leader.started

    def take(self, output: TokenOutput, now: float) -> None:
        """Check what came against what is owed. Raises Violation."""
        if self.finish is not None:
            raise Violation(f"an output after the terminal one of {self}: {output}")
        answer, sent = self.answer, self.num_emitted
        if output.token_ids:
            self.num_emitted += len(output.token_ids)
            self.known += len(output.token_ids)
            self.started = True
            if output.token_ids != answer.tokens[sent : self.num_emitted]:
                raise Violation(f"{self} got tokens {output.token_ids} at {sent}, owed are {answer.tokens}")
        self._take_logprobs(output, sent)
        if output.prompt_logprobs:
            start = self.num_scored
            self.num_scored += len(output.prompt_logprobs)
            if output.prompt_logprobs != answer.scores[start : self.num_scored]:
                raise Violation(f"{self} got wrong or repeated prompt scores at {start}")
        if output.finish is not None:
            self._end(output, now)
        elif self.is_complete:
            raise Violation(f"{self} got all its tokens and did not end")

    def _take_logprobs(self, output: TokenOutput, sent: int) -> None:
        wanted = self.request.params.logprobs is not None
        logprobs = tuple([entry.logprob for entry in output.logprobs])
        if logprobs != (self.answer.logprobs[sent : self.num_emitted] if wanted else ()):
            raise Violation(f"{self} got wrong logprobs at {sent}: its context was not its own")

    def _end(self, output: TokenOutput, now: float) -> None:
        finish = self.finish = output.finish
        request, answer = self.request, self.answer
        if finish is FinishReason.ABORT:
            if not self.is_aborted:
                raise Violation(f"{self} was aborted, but nobody asked for it")
        elif finish is FinishReason.DEADLINE:
            if request.deadline is None or request.deadline > now:
                raise Violation(f"{self} was ended before its deadline")
        elif finish is not answer.finish or self.num_emitted != len(answer.tokens):
            raise Violation(f"{self} ended with {finish} after {self.num_emitted} tokens, owed is {answer}")
        elif finish is not FinishReason.ERROR and output.token_ids and self.num_scored != len(answer.scores):
            raise Violation(f"{self} ended with {self.num_scored} of {len(answer.scores)} prompt scores")
        if (finish is FinishReason.ERROR) != (output.failure is not None):
            raise Violation(f"{self} ended with {finish} and the failure {output.failure!r}")
        if output.num_preemptions != self.num_preemptions:
            raise Violation(
                f"{self} was preempted {self.num_preemptions} times, not {output.num_preemptions}"
            )
        self._check_accounts(output, now)

    def _check_accounts(self, output: TokenOutput, now: float) -> None:
        timings = output.timings
        if timings is None or min(timings.queue, timings.prefill, timings.decode) < 0:
            raise Violation(f"{self} ended with the timings {timings}")
        if timings.queue + timings.prefill + timings.decode != now - self.request.arrival:
            raise Violation(f"the timings of {self} do not add up: {timings}")
        if not 0 <= output.num_cached <= self.num_prompt:
            raise Violation(f"{self} claims {output.num_cached} cached tokens")
        is_simple = output.token_ids and self.num_preemptions == 0 and not self.was_restarted
        if is_simple and output.num_cached + self.num_prompt_computed != self.num_prompt:
            raise Violation(
                f"{self} claims {output.num_cached} cached tokens and computed {self.num_prompt_computed}"
            )

    def __str__(self) -> str:
        return f"{self.request.request_id}/{self.request.choice}"
