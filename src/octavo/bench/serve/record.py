"""What is kept of one request. All times are seconds since the load began."""

from dataclasses import dataclass
from itertools import pairwise

from octavo.bench.serve.answer import Answer
from octavo.bench.serve.prompts import PlannedRequest

FINEST = 6  # digits after the point: a microsecond


@dataclass(frozen=True)
class RequestRecord:
    number: int
    prompt_tokens: int  # that were asked for
    output_tokens: int
    due_at: float  # when it was to be sent
    sent_at: float
    ended_at: float
    chunk_times: tuple[float, ...]  # of chunks that brought tokens
    chunk_tokens: tuple[int, ...] | None  # None: the server does not say how many each brought
    told_prompt_tokens: int | None  # by the server's usage, like the next two
    told_cached_tokens: int | None
    told_completion_tokens: int | None
    told_queue_seconds: float | None  # before its prompt was begun; our own server says it
    finish_reason: str | None
    status: int | None  # None: no answer came
    error: str | None

    @property
    def is_good(self) -> bool:
        return self.error is None

    @property
    def completion_tokens(self) -> int:
        """Chunks stand for tokens where nobody tells."""
        if self.told_completion_tokens is not None:
            return self.told_completion_tokens
        return len(self.chunk_times)

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_tokens if self.told_prompt_tokens is None else self.told_prompt_tokens

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.chunk_times[0] - self.sent_at

    @property
    def e2e(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def itl(self) -> tuple[float, ...]:
        """Times between chunks: between tokens, where each chunk is a token."""
        return tuple([after - before for before, after in pairwise(self.chunk_times)])

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first chunk; None where there is no second."""
        if not self.chunk_times:
            return None
        first = self.chunk_tokens[0] if self.chunk_tokens else 1
        rest = self.completion_tokens - first
        return (self.chunk_times[-1] - self.chunk_times[0]) / rest if rest > 0 else None

    @property
    def tokens_by_chunk(self) -> tuple[float, ...]:
        """Spread evenly where the server does not say."""
        if self.chunk_tokens is not None:
            return tuple(map(float, self.chunk_tokens))
        count = len(self.chunk_times)
        return (self.completion_tokens / count,) * count if count else ()


def record_of(planned: PlannedRequest, answer: Answer, *, due_at: float, started_at: float) -> RequestRecord:
    """`due_at` and `started_at` are on the clock of the answer."""

    def since(moment: float) -> float:
        return round(moment - started_at, FINEST)

    assert answer.done_at is not None
    has_counts = len(answer.chunk_tokens) == len(answer.chunk_times)
    return RequestRecord(
        number=planned.number,
        prompt_tokens=planned.prompt_tokens,
        output_tokens=planned.output_tokens,
        due_at=since(due_at),
        sent_at=since(answer.sent_at),
        ended_at=since(answer.done_at),
        chunk_times=tuple(map(since, answer.chunk_times)),
        chunk_tokens=tuple(answer.chunk_tokens) if has_counts and answer.chunk_times else None,
        told_prompt_tokens=answer.prompt_tokens,
        told_cached_tokens=answer.cached_tokens,
        told_completion_tokens=answer.completion_tokens,
        told_queue_seconds=answer.queue_seconds,
        finish_reason=answer.finish_reason,
        status=answer.status,
        error=answer.error,
    )
