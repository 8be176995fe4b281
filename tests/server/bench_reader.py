"""A stream parser that reads as `vllm bench serve` does."""

import json

from data.json_types import Json


class BenchReader:
    """Strips every read, and keeps an incomplete message for the next read."""

    def __init__(self) -> None:
        self._buffer = ""
        self.text = ""
        self.num_token_events = 0
        self.usage: Json = None

    def read(self, piece: bytes) -> None:
        self._buffer += piece.strip().decode()
        *messages, rest = self._buffer.split("\n\n")
        if rest.startswith("data: ") and _is_whole(rest.removeprefix("data: ")):
            messages.append(rest)
            rest = ""
        self._buffer = rest
        for message in messages:
            data = message.strip().removeprefix("data: ")
            if not data or data.startswith(":") or data == "[DONE]":
                continue
            event = json.loads(data)
            if choices := event.get("choices"):
                self.num_token_events += 1
                self.text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
            elif usage := event.get("usage"):
                self.usage = usage


def _is_whole(data: str) -> bool:
    try:
        return data.strip() == "[DONE]" or json.loads(data) is not None
    except json.JSONDecodeError:
        return False
