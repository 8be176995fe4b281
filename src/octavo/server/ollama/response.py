"""The lines of a response, which chats and completions share. A response that is not streamed is one line."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from octavo.dialect.pieces import CallArguments, CallStart, ParsedCall
from octavo.frontend.output import StreamDelta
from octavo.protocol import LOGPROB_FLOOR, TokenLogprob
from octavo.server.generation import Generation, raise_if_failed
from octavo.server.http.sse import Framing, encode
from octavo.server.ollama.errors import error_line
from octavo.server.ollama.schema import OllamaBody
from octavo.text.tokenizer import Tokenizer

# A line cannot be a comment. But JSON allows space before a value, so a space belongs to the next line.
LINES = Framing(lambda: b" ", error_line, media_type="application/x-ndjson")

Part = Callable[[str, str | None, list[dict[str, Any]]], dict[str, Any]]


class OllamaAnswer:
    """Encodes the output as lines. A call is sent as a whole, when its arguments are complete."""

    framing = LINES

    def __init__(self, body: OllamaBody, part: Part, generation: Generation) -> None:
        """`part` returns the fields of an endpoint, for a text, reasoning and calls."""
        self._generation = generation
        self._body = body
        self._part = part
        self._tokenizer = generation.state.model.tokenizer
        self._calls = OpenCall()

    def encode_delta(self, delta: StreamDelta) -> Sequence[tuple[StreamDelta, bytes]]:
        raise_if_failed(delta)
        calls = self._calls.take(delta.calls, is_last=delta.finish_reason is not None)
        logprobs = self._logprobs(delta.logprobs)
        if not (delta.text or delta.reasoning or calls or logprobs):
            return ((delta, b""),)
        line = self._head() | self._part(delta.text, delta.reasoning or None, calls) | logprobs
        return ((delta, encode(line | {"done": False}) + b"\n"),)

    def encode_end(self) -> bytes:
        return encode(self._head() | self._part("", None, []) | self._end()) + b"\n"

    def full_body(self) -> dict[str, Any]:
        (output,) = self._generation.results.values()
        (choice,) = output.choices
        calls = [shown for call in choice.calls if (shown := shown_call(call)) is not None]
        part = self._part(choice.text, choice.reasoning, calls)
        return self._head() | part | self._logprobs(choice.logprobs or ()) | self._end()

    def _head(self) -> dict[str, Any]:
        context = self._generation.context
        return {"model": context.model, "created_at": timestamp(context.created)}

    def _end(self) -> dict[str, Any]:
        (output,) = self._generation.results.values()
        (choice,) = output.choices
        seconds = time.monotonic() - self._generation.context.arrival
        end: dict[str, Any] = {
            "done": True,
            "done_reason": choice.finish_reason,
            "total_duration": nanoseconds(seconds),
            "load_duration": 0,
            "prompt_eval_count": len(output.prompt_ids),
            "prompt_eval_duration": nanoseconds(choice.timings.prefill),
            "eval_count": len(choice.token_ids),
            "eval_duration": nanoseconds(choice.timings.decode),
        }
        if self._body.wants_explanation:
            end["octavo"] = self._generation.explanation()
        return end

    def _logprobs(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        entries = [_scored(self._tokenizer, entry) for entry in logprobs]
        return {"logprobs": entries} if entries else {}


class OpenCall:
    """The calls of a stream, of which the last may be incomplete."""

    def __init__(self) -> None:
        self._open: CallStart | None = None
        self._arguments: list[str] = []

    def take(self, pieces: Iterable[CallStart | CallArguments], *, is_last: bool) -> list[dict[str, Any]]:
        """Return the calls that these pieces complete."""
        complete: list[dict[str, Any]] = []
        for piece in pieces:
            if isinstance(piece, CallStart):
                complete += self._close()
                self._open = piece
            else:
                self._arguments.append(piece.text)
        return complete + self._close() if is_last else complete

    def _close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        shown = shown_call(ParsedCall(self._open.name, "".join(self._arguments), self._open.id))
        self._open = None
        self._arguments.clear()
        return [] if shown is None else [shown]


def shown_call(call: ParsedCall) -> dict[str, Any] | None:
    """Return a call; None if its arguments are not a JSON object, because the answer was cut off.

    The API has arguments only as objects, and a call with others than the model wrote must not be executed.
    """
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments}}


def timestamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nanoseconds(seconds: float) -> int:
    """Return at least 1: applications divide by durations."""
    return max(1, round(seconds * 1e9))


def _scored(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, Any]:
    top = [_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top]
    scored = _token(tokenizer, entry.token_id, entry.logprob)
    return scored | {"top_logprobs": top} if top else scored


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(logprob, LOGPROB_FLOOR),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }
