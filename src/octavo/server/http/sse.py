"""Server-sent events, as bytes."""

import msgspec

from octavo.server.http.errors import ApiError

PING_SECONDS = 5.0

PING = b": ping\n\n"
# Comes before the first event after a ping, in one write with it. `vllm bench serve` strips what it reads,
# and would take "ping" and the event for one comment: then the first token would be lost to it.
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
