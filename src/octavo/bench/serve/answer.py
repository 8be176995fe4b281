"""One streamed answer as it comes: when each chunk came, how many tokens it had, and what the end said."""

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


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class ExplainedChoice(msgspec.Struct):
    queue_seconds: float | None = None


class ExplainedRequest(msgspec.Struct):
    choices: list[ExplainedChoice] = []


class Explanation(msgspec.Struct):
    """What our own server adds to the last event, if asked."""

    requests: list[ExplainedRequest] = []


class Event(msgspec.Struct):
    """The parts of a chunk that count here. The others are skipped while it is read."""

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


class Answer:
    """Grows while it is read; its connection alone writes to it."""

    __slots__ = (
        "_rest",
        "cached_tokens",
        "chunk_times",
        "chunk_tokens",
        "completion_tokens",
        "done_at",
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
        self.chunk_tokens: list[int] = []  # as many as chunks where the server tells them, else none
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.queue_seconds: float | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done_at: float | None = None
        self.is_done = False  # the last event was there
        self._rest = b""

    def take(self, body: bytes, now: float) -> None:
        """Any part of the body, whole events or not."""
        if self.status != 200:
            self._rest += body
            return
        if self._rest:
            body = self._rest + body
        # Lines end with \n or \r\n; what has no end yet waits for the rest.
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
            self.error = "the stream broke off before its end"

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _read_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.error = f"an event is not what it should be: {data[:80]!r}"
            return
        if event.error is not None:
            self.error = _words(event.error)
            return
        if event.octavo is not None:
            self._take_explanation(event.octavo)
        told = self._take_usage(event.usage) if event.usage is not None else 0
        for choice in event.choices:
            if choice.finish_reason is not None:
                self.finish_reason = str(choice.finish_reason)
            num_tokens = told or len(choice.token_ids or ())
            # A first token may have no text: the end then says that it was there.
            if num_tokens or _has_text(choice) or (choice.finish_reason and not self.chunk_times):
                self.chunk_times.append(now)
                if num_tokens:
                    self.chunk_tokens.append(num_tokens)

    def _take_usage(self, usage: Usage) -> int:
        """Tokens that are new since the last count. A count at the end alone says nothing of chunks."""
        before = self.completion_tokens or 0
        is_counted = before > 0 or not self.chunk_times
        if usage.completion_tokens is not None:
            self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
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
    """What an answer other than 200 says, in whatever form."""
    try:
        answer = _read_error(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode(errors="replace").strip()
    return _words(answer.error or answer.message or answer.detail or "")


def _words(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]
