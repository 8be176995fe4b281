"""Server-sent events, as bytes."""

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

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}

encode = msgspec.json.Encoder().encode


def error_event(error: ApiError) -> bytes:
    return b"data: " + encode(error.body) + b"\n\n"
