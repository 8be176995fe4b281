"""One choice of a request from the view of its client: the output so far, and the expected rest."""

import msgspec

from octavo.protocol import FinishReason, GenerateRequest, TokenOutput
from octavo.simulate.oracle import ExpectedAnswer


class Violation(AssertionError):
    """A rule was violated. The message contains the seed and the step; the same seed reproduces it."""


class TrackedRequest:
    __slots__ = (
        "answer",
        "arrival_step",
        "finish",
        "is_aborted",
        "key",
        "leader",
        "num_accepted",
        "num_blocks",
        "num_charged",
        "num_computed",
        "num_drafted",
        "num_emitted",
        "num_known",
        "num_preemptions",
        "num_prompt",
        "num_prompt_computed",
        "num_scored",
        "request",
        "slot",
        "started",
        "stop_length",
        "was_restarted",
        "work_done_at_arrival",
    )

    def __init__(
        self, request: GenerateRequest, answer: ExpectedAnswer, order: int, max_model_len: int
    ) -> None:
        assert request.params.max_tokens is not None
        self.request = request
        self.answer = answer
        self.key = (request.priority, order)
        self.num_prompt = len(request.prompt_ids)
        self.stop_length = min(self.num_prompt + request.params.max_tokens, max_model_len)
        self.num_emitted = len(request.resume_ids)
        self.num_known = self.num_prompt + self.num_emitted  # tokens of prompt and output
        self.num_scored = 0
        self.finish: FinishReason | None = None
        self.is_aborted = False
        self.was_restarted = bool(request.resume_ids)
        # State in the engine.
        self.slot = -1
        self.num_computed = 0
        self.num_blocks = 0  # of its table, as the worker knows it
        self.num_preemptions = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_prompt_computed = 0
        self.num_charged = 0  # end of the tokens that count as service to its tenant
        self.started = False  # has had output since the engine started
        self.leader: TrackedRequest | None = None
        # For the limit on its waiting time.
        self.arrival_step = 0
        self.work_done_at_arrival = 0

    @property
    def work(self) -> int:
        """Return the number of tokens to compute, if none is computed twice."""
        return self.num_prompt + len(self.answer.tokens)

    @property
    def is_complete(self) -> bool:
        """Return whether it has every token, perhaps from resuming: only the terminal output is missing."""
        return self.num_emitted == len(self.answer.tokens) and self.answer.finish is not FinishReason.ERROR

    def reset_after_crash(self) -> None:
        """Resume from the tokens that the client has; prompt scores will be sent again."""
        resume_ids = self.answer.tokens[: self.num_emitted]
        self.request = msgspec.structs.replace(self.request, resume_ids=resume_ids)
        self.was_restarted, self.started = True, False
        self.slot, self.num_computed, self.num_preemptions, self.num_scored = -1, 0, 0, 0
        self.num_charged = self.num_blocks = self.num_drafted = self.num_accepted = 0

    @property
    def queue(self) -> tuple[int, str]:
        return self.request.rank, self.request.tenant

    @property
    def is_parked(self) -> bool:
        """Return whether it waits for another choice to compute the prompt."""
        leader = self.leader
        return leader is not None and leader.finish is None and not leader.started

    def receive(self, output: TokenOutput, now: float) -> None:
        """Check an output against the expected answer. Raises Violation."""
        if self.finish is not None:
            raise Violation(f"{self} got an output after the terminal one: {output}")
        answer, sent = self.answer, self.num_emitted
        if output.token_ids:
            self.num_emitted += len(output.token_ids)
            self.num_known += len(output.token_ids)
            self.started = True
            if output.token_ids != answer.tokens[sent : self.num_emitted]:
                raise Violation(f"{self} got tokens {output.token_ids} at {sent}, expected {answer.tokens}")
        self._check_logprobs(output, sent)
        if output.prompt_logprobs:
            start = self.num_scored
            self.num_scored += len(output.prompt_logprobs)
            if output.prompt_logprobs != answer.scores[start : self.num_scored]:
                raise Violation(f"{self} got wrong or repeated prompt scores at {start}")
        if output.finish is not None:
            self._check_finish(output, now)
        elif self.is_complete:
            raise Violation(f"{self} got all its tokens but did not end")

    def _check_logprobs(self, output: TokenOutput, sent: int) -> None:
        is_requested = self.request.params.logprobs is not None
        logprobs = tuple([entry.logprob for entry in output.logprobs])
        if logprobs != (self.answer.logprobs[sent : self.num_emitted] if is_requested else ()):
            raise Violation(f"{self} got wrong logprobs at {sent}: they come from another context")

    def _check_finish(self, output: TokenOutput, now: float) -> None:
        finish = self.finish = output.finish
        request, answer = self.request, self.answer
        if finish is FinishReason.ABORT:
            if not self.is_aborted:
                raise Violation(f"{self} ended as aborted without an abort")
        elif finish is FinishReason.DEADLINE:
            if request.deadline is None or request.deadline > now:
                raise Violation(f"{self} expired before its deadline")
        elif finish is not answer.finish or self.num_emitted != len(answer.tokens):
            raise Violation(f"{self} ended with {finish} after {self.num_emitted} tokens, expected {answer}")
        elif finish is not FinishReason.ERROR and output.token_ids and self.num_scored != len(answer.scores):
            raise Violation(f"{self} ended with {self.num_scored} of {len(answer.scores)} prompt scores")
        if (finish is FinishReason.ERROR) != (output.failure is not None):
            raise Violation(f"{self} ended with {finish} and the failure {output.failure!r}")
        if output.num_preemptions != self.num_preemptions:
            raise Violation(
                f"{self} reports {output.num_preemptions} preemptions, expected {self.num_preemptions}"
            )
        self._check_accounting(output, now)

    def _check_accounting(self, output: TokenOutput, now: float) -> None:
        drafts = output.num_drafted, output.num_accepted
        if drafts != (self.num_drafted, self.num_accepted):
            raise Violation(
                f"{self} reports {drafts} drafted and accepted tokens, "
                f"expected {(self.num_drafted, self.num_accepted)}"
            )
        timings = output.timings
        if timings is None or min(timings.queue, timings.prefill, timings.decode) < 0:
            raise Violation(f"{self} ended with the timings {timings}")
        if timings.queue + timings.prefill + timings.decode != now - self.request.arrival:
            raise Violation(f"the timings of {self} do not add up: {timings}")
        if not 0 <= output.num_cached <= self.num_prompt:
            raise Violation(f"{self} reports {output.num_cached} cached tokens")
        is_simple = output.token_ids and self.num_preemptions == 0 and not self.was_restarted
        if is_simple and output.num_cached + self.num_prompt_computed != self.num_prompt:
            raise Violation(
                f"{self} reports {output.num_cached} cached tokens and computed {self.num_prompt_computed}"
            )

    def __str__(self) -> str:
        return f"{self.request.request_id}/{self.request.choice}"
