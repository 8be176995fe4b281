"""A streamed answer under measurement: arrival time and token count of each chunk, and the final usage."""

from typing import Any

import msgspec


class Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None


class EventChoice(msgspec.Struct):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: Any = None
    token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ExplainedChoice(msgspec.Struct):
    queue_seconds: float | None = None


class ExplainedRequest(msgspec.Struct):
    choices: list[ExplainedChoice] = []


class Explanation(msgspec.Struct):
    """The `octavo` object that Octavo adds to the last event on request."""

    requests: list[ExplainedRequest] = []


class Event(msgspec.Struct):
    """The fields of a chunk that are measured. The decoder skips all others."""

    choices: list[EventChoice] = []
    usage: Usage | None = None
    error: Any = None
    octavo: Explanation | None = None


class ErrorAnswer(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None


_read_event = msgspec.json.Decoder(Event).decode
_read_error = msgspec.json.Decoder(ErrorAnswer).decode


class MeasuredAnswer:
    """Filled by its connection while the stream is read."""

    __slots__ = (
        "_rest",
        "accepted_tokens",
        "cached_tokens",
        "chunk_times",
        "chunk_tokens",
        "completion_tokens",
        "done_at",
        "drafted_tokens",
        "error",
        "finish_reason",
        "is_done",
        "prompt_tokens",
        "queue_seconds",
        "sent_at",
        "status",
    )

    def __init__(self, sent_at: float) -> None:
        self.sent_at = sent_at
        self.status: int | None = None
        self.chunk_times: list[float] = []
        self.chunk_tokens: list[int] = []  # one per chunk if the server reports token counts, else empty
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.drafted_tokens: int | None = None
        self.accepted_tokens: int | None = None
        self.queue_seconds: float | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done_at: float | None = None
        self.is_done = False  # [DONE] was received
        self._rest = b""

    def feed(self, body: bytes, now: float) -> None:
        """Add a piece of the body; it may end within an event."""
        if self.status != 200:
            self._rest += body
            return
        if self._rest:
            body = self._rest + body
        # Lines end with \n or \r\n; an incomplete line is kept for the next piece.
        *lines, self._rest = body.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def end(self, now: float) -> None:
        self.done_at = now
        if self.status != 200:
            self.error = _message(self._rest)
        elif self.error is None and not self.chunk_times:
            self.error = "the stream ended without a token"
        elif self.error is None and self.finish_reason is None and not self.is_done:
            self.error = "the stream ended early, without a finish reason or [DONE]"

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _read_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.error = f"the server sent an invalid event: {data[:80]!r}"
            return
        if event.error is not None:
            self.error = _error_text(event.error)
            return
        if event.octavo is not None:
            self._take_explanation(event.octavo)
        new_tokens = self._take_usage(event.usage) if event.usage is not None else 0
        for choice in event.choices:
            if choice.finish_reason is not None:
                self.finish_reason = str(choice.finish_reason)
            num_tokens = new_tokens or len(choice.token_ids or ())
            # The first token may have no text; then the finish reason shows that it was generated.
            if num_tokens or _has_text(choice) or (choice.finish_reason and not self.chunk_times):
                self.chunk_times.append(now)
                if num_tokens:
                    self.chunk_tokens.append(num_tokens)

    def _take_usage(self, usage: Usage) -> int:
        """Return the number of tokens since the last count; 0 if the only count is at the end."""
        before = self.completion_tokens or 0
        is_counted = before > 0 or not self.chunk_times
        if usage.completion_tokens is not None:
            self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        if usage.completion_tokens_details is not None:
            self.drafted_tokens = usage.completion_tokens_details.drafted_tokens
            self.accepted_tokens = usage.completion_tokens_details.accepted_tokens
        return (self.completion_tokens or 0) - before if is_counted else 0

    def _take_explanation(self, explanation: Explanation) -> None:
        for request in explanation.requests:
            for choice in request.choices:
                self.queue_seconds = choice.queue_seconds


def _has_text(choice: EventChoice) -> bool:
    delta = choice.delta
    if delta is not None:
        return bool(delta.content or delta.reasoning_content or delta.reasoning)
    return bool(choice.text)


def _message(body: bytes) -> str:
    """Return the error message of a response other than 200, in any of the common forms."""
    try:
        answer = _read_error(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode(errors="replace").strip()
    return _error_text(answer.error or answer.message or answer.detail or "")


def _error_text(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]
