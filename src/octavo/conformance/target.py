"""The interface of checks to the server under test: requests as fields, responses as objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.conformance.transport import Reply, Request, Transport

DONE = b"[DONE]"


class UnexpectedStatus(Exception):
    """A valid request got a status other than 200."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        super().__init__(f"status {reply.status}: {error_message(reply)}"[:100])

    @property
    def is_clean(self) -> bool:
        """Return whether this is a rejection with a message: no crash, and not a validation library's 422."""
        return 400 <= self.reply.status < 500 and self.reply.status != 422 and bool(error_message(self.reply))


def error_message(reply: Reply) -> str:
    content = reply.json
    error = content.get("error") if isinstance(content, dict) else None
    return str(error.get("message") or "") if isinstance(error, dict) else ""


@dataclass(frozen=True)
class Stream:
    """A completed stream."""

    reply: Reply
    events: tuple[Any, ...]  # without [DONE]
    names: tuple[str, ...]  # of the events, as far as they have one
    is_done: bool  # [DONE] was the last event and occurred once

    def choices(self, index: int) -> list[dict[str, Any]]:
        """Return the parts of one choice in all chunks, in order."""
        return [one for event in self.events for one in event["choices"] if one["index"] == index]

    def chat_text(self, index: int = 0) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in self.choices(index))

    def text(self, index: int = 0) -> str:
        return "".join(choice["text"] for choice in self.choices(index))


@dataclass(frozen=True)
class CheckTarget:
    transport: Transport
    model: str = ""
    api_key: str | None = None

    def get(self, path: str, *, api_key: str | None = None) -> Reply:
        return self.transport(Request("GET", path, self._headers(api_key)))

    def post(self, path: str, body: bytes | Mapping[str, Any], *, api_key: str | None = None) -> Reply:
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = self._headers(api_key) | {"content-type": "application/json"}
        return self.transport(Request("POST", path, headers, content))

    def delete(self, path: str) -> Reply:
        return self.transport(Request("DELETE", path, self._headers(None)))

    def chat_fields(self, **fields: Any) -> dict[str, Any]:
        """Return the fields of a valid request, overridden by `fields`."""
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

    def message(self, **fields: Any) -> Any:
        return self._answer("/messages", {**MESSAGE, "model": self.model, **fields})

    def stream_message(self, **fields: Any) -> Stream:
        return self._stream("/messages", {**MESSAGE, "model": self.model, "stream": True, **fields})

    def respond(self, **fields: Any) -> Any:
        return self._answer("/responses", {**RESPONSE, "model": self.model, **fields})

    def stream_response(self, **fields: Any) -> Stream:
        return self._stream("/responses", {**RESPONSE, "model": self.model, "stream": True, **fields})

    def _headers(self, api_key: str | None) -> dict[str, str]:
        """Use the key of the target if `api_key` is None, and no key if it is empty."""
        key = self.api_key if api_key is None else api_key
        return {"authorization": f"Bearer {key}"} if key else {}

    def _answer(self, path: str, fields: Mapping[str, Any]) -> Any:
        reply = self.post(path, fields)
        if reply.status != 200:
            raise UnexpectedStatus(reply)
        return reply.json

    def _stream(self, path: str, fields: Mapping[str, Any]) -> Stream:
        reply = self.post(path, fields)
        if reply.status != 200:
            raise UnexpectedStatus(reply)
        return read_stream(reply)


def read_stream(reply: Reply) -> Stream:
    """Parse server-sent events strictly, as far as this API uses them: lines, `data:`, comments."""
    lines = reply.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    payloads = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    is_done = payloads[-1:] == [DONE] and DONE not in payloads[:-1]
    names = [line.removeprefix(b"event:").strip().decode() for line in lines if line.startswith(b"event:")]
    events = [msgspec.json.decode(payload) for payload in payloads if payload != DONE]
    return Stream(reply, tuple(events), tuple(names), is_done)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


GREETING = "Count from one to ten in words."
PROMPT = "One, two, three, four,"
# Temperature 0 lets checks detect what a field changes.
CHAT: Mapping[str, Any] = {"messages": user(GREETING), "temperature": 0, "max_tokens": 16}
MESSAGE: Mapping[str, Any] = CHAT
RESPONSE: Mapping[str, Any] = {"input": GREETING, "temperature": 0, "max_output_tokens": 16}
COMPLETION: Mapping[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 16}
