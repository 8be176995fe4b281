"""Server-sent events, as bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.server.http.errors import ApiError

PING_SECONDS = 5.0

PING = b": ping\n\n"
# In a stream whose events have ids: OpenAI's clients would take an empty line for an event without data.
PING_WITH_IDS = b": ping\n"
# Sent before the first event after a ping, in the same write. `vllm bench serve` strips what it reads, and
# would otherwise take the ping and the event for one comment and miss the first token.
AFTER_PING = b":\n\n"
DONE = b"data: [DONE]\n\n"

EVENT_STREAM = "text/event-stream; charset=utf-8"
HEADERS = {
    "content-type": EVENT_STREAM,
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}

encode = msgspec.json.Encoder().encode


def error_event(error: ApiError) -> bytes:
    return b"data: " + encode(error.body) + b"\n\n"


def named_event(kind: str, content: Any) -> bytes:
    """Return an event with a name, for clients that look at the name before the content."""
    return b"event: " + kind.encode() + b"\ndata: " + encode(content) + b"\n\n"


@dataclass(frozen=True)
class Framing:
    """What a stream contains besides the events of its answer."""

    ping: Callable[[], bytes]  # sent while there is nothing else to send
    failure: Callable[[ApiError], bytes]  # the last event, if the answer cannot be completed
    done: bytes = b""  # after the last event
    after_ping: bytes = b""  # before the first event after a ping
    opening: Callable[[], bytes] = bytes  # the first events, sent before the model has said anything
    media_type: str = EVENT_STREAM

    @property
    def headers(self) -> dict[str, str]:
        return HEADERS | {"content-type": self.media_type}


COMMENTS = Framing(lambda: PING, error_event, DONE, AFTER_PING)
COMMENTS_WITH_IDS = Framing(lambda: PING_WITH_IDS, error_event, DONE)
