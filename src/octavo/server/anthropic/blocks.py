"""The content blocks of a message: thinking, then text and tool_use in the order of the answer."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pydantic_core import from_json

from octavo.dialect.pieces import CallArguments, CallStart
from octavo.frontend.answer_order import OrderedPart, ordered
from octavo.frontend.output import Choice
from octavo.server.anthropic.conversation import wire_id
from octavo.server.http.sse import encode, named_event

# The member of an `input` that holds the text of arguments that are no JSON object, as Anthropic's
# documentation proposes it.
INVALID_JSON = "INVALID_JSON"


def blocks_of(choice: Choice, *, has_thinking: bool) -> list[dict[str, Any]]:
    """Return the blocks of a complete answer. `has_thinking`: thinking blocks show their text."""
    blocks: list[dict[str, Any]] = []
    if choice.reasoning:
        text = choice.reasoning
        shown = text if has_thinking else ""
        blocks.append({"type": "thinking", "thinking": shown, "signature": signature(digest(text))})
    for part in ordered(choice):
        if isinstance(part, str):
            blocks.append({"type": "text", "text": part})
        elif isinstance(part, CallStart):
            blocks.append(_tool_use(part))
        else:
            blocks[-1]["input"] = given_input(part.text, is_cut=choice.finish_reason == "length")
    return blocks or [{"type": "text", "text": ""}]


def given_input(arguments: str, *, is_cut: bool) -> Any:
    """Return the arguments of a call, as an object.

    A call in which the answer reached its maximum length has the members up to there, as clients get them
    from a stream. `stop_reason` says that they are incomplete.
    """
    if not arguments.strip():
        return {}
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return _incomplete_input(arguments) if is_cut else {INVALID_JSON: arguments}
    # The text itself: numbers stay as the model wrote them.
    return msgspec.Raw(arguments.encode()) if isinstance(value, dict) else {INVALID_JSON: arguments}


def _incomplete_input(arguments: str) -> Any:
    try:
        value = from_json(arguments, allow_partial=True, allow_inf_nan=False)
        if isinstance(value, dict):
            return msgspec.Raw(json.dumps(value, allow_nan=False).encode())
    except ValueError:
        pass
    return {INVALID_JSON: arguments}


def digest(text: str = "") -> "hashlib.blake2b":
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=24)


def signature(digest: "hashlib.blake2b") -> str:
    """Return what clients send back with thinking. It proves nothing: on input it is ignored."""
    return digest.hexdigest()


def _tool_use(start: CallStart) -> dict[str, Any]:
    return {"type": "tool_use", "id": wire_id(start.id), "name": start.name, "input": {}}


class BlockEvents:
    """Encodes the blocks of one stream. Every block starts after the previous one has stopped."""

    def __init__(self, *, has_thinking: bool) -> None:
        self._has_thinking = has_thinking
        self._index = -1
        self._kind: str | None = None  # of the open block
        self._thought = digest()
        self._text_start = b""

    def thinking(self, text: str) -> bytes:
        start = b""
        if self._kind != "thinking":
            start = self._start({"type": "thinking", "thinking": "", "signature": ""})
        self._thought.update(text.encode("utf-8", "surrogatepass"))
        if not self._has_thinking:
            return start
        return start + self._delta({"type": "thinking_delta", "thinking": text})

    def text(self, text: str) -> bytes:
        start = b"" if self._kind == "text" else self._start({"type": "text", "text": ""})
        return start + self._text_start + encode(text) + b"}}\n\n" if text else start

    def parts(self, parts: Iterable[OrderedPart]) -> bytes:
        return b"".join([self._part(part) for part in parts])

    def end(self) -> bytes:
        """Stop the last block. An empty answer has one empty block of text."""
        start = self.text("") if self._index < 0 else b""
        return start + self._stop()

    def _part(self, part: OrderedPart) -> bytes:
        match part:
            case CallStart():
                return self._start(_tool_use(part))
            case CallArguments():
                return self._delta({"type": "input_json_delta", "partial_json": part.text})
            case str():
                return self.text(part)

    def _start(self, block: Mapping[str, Any]) -> bytes:
        stop = self._stop()
        self._index += 1
        self._kind = block["type"]
        if self._kind == "text":
            self._text_start = (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                b'"delta":{"type":"text_delta","text":' % self._index
            )
        return stop + self._event("content_block_start", content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return self._event("content_block_delta", delta=delta)

    def _stop(self) -> bytes:
        if self._kind is None:
            return b""
        signed = b""
        if self._kind == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": signature(self._thought)})
        self._kind = None
        return signed + self._event("content_block_stop")

    def _event(self, kind: str, **content: Any) -> bytes:
        return named_event(kind, {"type": kind, "index": self._index, **content})
