"""Answers of a chat as clients read them: content, reasoning, calls of tools."""

import hashlib
from collections.abc import Sequence
from typing import Any

from octavo.dialect.pieces import CallArguments, CallStart
from octavo.frontend.output import Choice, StreamDelta


def finish_reason(reason: str | None, *, has_calls: bool) -> str | None:
    """An answer that ends by itself with calls in it waits for their results."""
    return "tool_calls" if reason == "stop" and has_calls else reason


def whole_message(choice: Choice, call_ids: "CallIds") -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text if choice.text or not choice.calls else None,
        "refusal": None,
    }
    if choice.reasoning is not None:
        message |= _reasoning(choice.reasoning)
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call_ids.of(choice.index, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(choice.calls)
        ]
    return message


def message_delta(delta: StreamDelta, call_ids: "CallIds") -> dict[str, Any]:
    """What is new, and nothing else: clients add deltas up."""
    message: dict[str, Any] = {}
    if delta.text:
        message["content"] = delta.text
    if delta.reasoning:
        message |= _reasoning(delta.reasoning)
    if delta.calls:
        message["tool_calls"] = _call_deltas(delta.choice, delta.calls, call_ids)
    return message


def _reasoning(text: str) -> dict[str, str]:
    """Clients have not agreed on a name."""
    return {"reasoning_content": text, "reasoning": text}


def _call_deltas(
    choice: int, pieces: Sequence[CallStart | CallArguments], call_ids: "CallIds"
) -> list[dict[str, Any]]:
    return [
        {
            "index": piece.index,
            "id": call_ids.of(choice, piece.index),
            "type": "function",
            "function": {"name": piece.name, "arguments": ""},
        }
        if isinstance(piece, CallStart)
        else {"index": piece.index, "function": {"arguments": piece.text}}
        for piece in pieces
    ]


class CallIds:
    """Names of the calls of one response: letters and digits, as long as the model's template wants them."""

    def __init__(self, response_id: str, length: int) -> None:
        self._response_id = response_id
        self._length = length

    def of(self, choice: int, number: int) -> str:
        return hashlib.sha256(f"{self._response_id}/{choice}/{number}".encode()).hexdigest()[: self._length]
