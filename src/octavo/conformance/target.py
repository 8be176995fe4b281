"""The server under test as checks see it: requests by their fields, answers as objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.conformance.transport import Reply, Request, Transport

DONE = b"[DONE]"


class Refused(Exception):
    """An answer other than 200 to a request that is right."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        super().__init__(f"answered {reply.status}: {error_message(reply)}"[:100])

    @property
    def is_clean(self) -> bool:
        """It was refused on purpose, and in words: not a crash, and not a validator's own format."""
        return 400 <= self.reply.status < 500 and self.reply.status != 422 and bool(error_message(self.reply))


def error_message(reply: Reply) -> str:
    content = reply.json
    error = content.get("error") if isinstance(content, dict) else None
    return str(error.get("message") or "") if isinstance(error, dict) else ""


@dataclass(frozen=True)
class Stream:
    """A stream that has come to its end."""

    reply: Reply
    events: tuple[Any, ...]  # without the last one
    is_done: bool  # the last one was [DONE], and nothing came after it

    def choices(self, index: int) -> list[dict[str, Any]]:
        """What the chunks say of one choice, in their order."""
        return [one for event in self.events for one in event["choices"] if one["index"] == index]

    def chat_text(self, index: int = 0) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in self.choices(index))

    def text(self, index: int = 0) -> str:
        return "".join(choice["text"] for choice in self.choices(index))


@dataclass(frozen=True)
class Target:
    transport: Transport
    model: str = ""
    api_key: str | None = None

    def get(self, path: str, *, api_key: str | None = None) -> Reply:
        return self.transport(Request("GET", path, self._headers(api_key)))

    def post(self, path: str, body: bytes | Mapping[str, Any], *, api_key: str | None = None) -> Reply:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = self._headers(api_key) | {"content-type": "application/json"}
        return self.transport(Request("POST", path, headers, content))

    def chat_fields(self, **fields: Any) -> dict[str, Any]:
        """A right request, but for what is given here."""
        return {**CHAT, "model": self.model, **fields}

    def completion_fields(self, **fields: Any) -> dict[str, Any]:
        return {**COMPLETION, "model": self.model, **fields}

    def chat(self, **fields: Any) -> Any:
        return self._answer("/chat/completions", self.chat_fields(**fields))

    def complete(self, **fields: Any) -> Any:
        return self._answer("/completions", self.completion_fields(**fields))

    def stream_chat(self, **fields: Any) -> Stream:
        return self._stream("/chat/completions", self.chat_fields(stream=True, **fields))

    def stream_completion(self, **fields: Any) -> Stream:
        return self._stream("/completions", self.completion_fields(stream=True, **fields))

    def _headers(self, api_key: str | None) -> dict[str, str]:
        """None: the key that was given; empty: none at all."""
        key = self.api_key if api_key is None else api_key
        return {"authorization": f"Bearer {key}"} if key else {}

    def _answer(self, path: str, fields: Mapping[str, Any]) -> Any:
        reply = self.post(path, fields)
        if reply.status != 200:
            raise Refused(reply)
        return reply.json

    def _stream(self, path: str, fields: Mapping[str, Any]) -> Stream:
        reply = self.post(path, fields)
        if reply.status != 200:
            raise Refused(reply)
        return read_stream(reply)


def read_stream(reply: Reply) -> Stream:
    """Events by the letter of the standard, as far as this API uses it: lines, `data:`, comments."""
    lines = reply.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    payloads = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    is_done = payloads[-1:] == [DONE] and DONE not in payloads[:-1]
    return Stream(
        reply, tuple(msgspec.json.decode(payload) for payload in payloads if payload != DONE), is_done
    )


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


GREETING = "Count from one to ten in words."
PROMPT = "One, two, three, four,"
# At temperature 0, so that checks can tell what a field changes.
CHAT: Mapping[str, Any] = {"messages": user(GREETING), "temperature": 0, "max_tokens": 16}
COMPLETION: Mapping[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16}
