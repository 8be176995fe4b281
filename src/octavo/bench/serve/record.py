"""The record of one request. All times are seconds since the start of the load."""

from dataclasses import dataclass
from itertools import pairwise

from octavo.bench.serve.answer import MeasuredAnswer
from octavo.bench.serve.prompts import PlannedRequest

TIME_DIGITS = 6  # after the decimal point: microseconds


@dataclass(frozen=True)
class LoadRecord:
    number: int
    prompt_tokens: int  # as requested, like the next one
    output_tokens: int
    due_at: float  # when it should have been sent
    sent_at: float
    ended_at: float
    chunk_times: tuple[float, ...]  # of chunks with tokens
    chunk_tokens: tuple[int, ...] | None  # None: not reported by the server
    reported_prompt_tokens: int | None  # from the server's usage, like the next two
    reported_cached_tokens: int | None
    reported_completion_tokens: int | None
    reported_queue_seconds: float | None  # before its prompt was started; reported by Octavo only
    finish_reason: str | None
    status: int | None  # None: no response
    error: str | None
    reported_drafted_tokens: int | None = None  # in usage, by Octavo only; None: nothing was drafted
    reported_accepted_tokens: int | None = None

    @property
    def is_good(self) -> bool:
        return self.error is None

    @property
    def completion_tokens(self) -> int:
        """Number of tokens as reported, or else the number of chunks."""
        if self.reported_completion_tokens is not None:
            return self.reported_completion_tokens
        return len(self.chunk_times)

    @property
    def num_prompt_tokens(self) -> int:
        return self.prompt_tokens if self.reported_prompt_tokens is None else self.reported_prompt_tokens

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.chunk_times[0] - self.sent_at

    @property
    def e2e(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def itl(self) -> tuple[float, ...]:
        """Times between chunks; these are times between tokens if each chunk is one token."""
        return tuple([after - before for before, after in pairwise(self.chunk_times)])

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first chunk; None if there are no further tokens."""
        if not self.chunk_times:
            return None
        first = self.chunk_tokens[0] if self.chunk_tokens else 1
        rest = self.completion_tokens - first
        return (self.chunk_times[-1] - self.chunk_times[0]) / rest if rest > 0 else None

    @property
    def tokens_by_chunk(self) -> tuple[float, ...]:
        """Tokens of each chunk, distributed evenly if the server does not report them."""
        if self.chunk_tokens is not None:
            return tuple(map(float, self.chunk_tokens))
        count = len(self.chunk_times)
        return (self.completion_tokens / count,) * count if count else ()


def record_of(
    planned: PlannedRequest, answer: MeasuredAnswer, *, due_at: float, started_at: float
) -> LoadRecord:
    """Make the record of an answer. `due_at` and `started_at` use the same clock as the answer."""

    def since_start(time: float) -> float:
        return round(time - started_at, TIME_DIGITS)

    assert answer.done_at is not None
    has_counts = len(answer.chunk_tokens) == len(answer.chunk_times)
    return LoadRecord(
        number=planned.number,
        prompt_tokens=planned.prompt_tokens,
        output_tokens=planned.output_tokens,
        due_at=since_start(due_at),
        sent_at=since_start(answer.sent_at),
        ended_at=since_start(answer.done_at),
        chunk_times=tuple(map(since_start, answer.chunk_times)),
        chunk_tokens=tuple(answer.chunk_tokens) if has_counts and answer.chunk_times else None,
        reported_prompt_tokens=answer.prompt_tokens,
        reported_cached_tokens=answer.cached_tokens,
        reported_completion_tokens=answer.completion_tokens,
        reported_drafted_tokens=answer.drafted_tokens,
        reported_accepted_tokens=answer.accepted_tokens,
        reported_queue_seconds=answer.queue_seconds,
        finish_reason=answer.finish_reason,
        status=answer.status,
        error=answer.error,
    )
