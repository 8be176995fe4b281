"""A stub server without a model, to measure the client's own cost.

`python -m octavo.bench.serve.stub` prints its port and exits when its stdin is closed. Each token is the
next word of a list and a separate write, as when a server generates tokens one by one.
"""

import asyncio
import sys
from typing import Any

import httptools
import msgspec
import uvloop

from octavo.bench.serve.words import WORDS

MODEL = "stub"


def sse(event: Any) -> bytes:
    return chunked(b"data: " + msgspec.json.encode(event) + b"\n\n")


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_FRAME = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1, "model": MODEL}
WORD_CHUNKS = [
    sse(_FRAME | {"choices": [{"index": 0, "text": f" {word}", "logprobs": None, "finish_reason": None}]})
    for word in WORDS
]


class StubConnection(asyncio.Protocol):
    """Writes one chunk at a time and yields to the other connections in between."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._path = b""
        self._body = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path.endswith(b"/completions"):
            request = msgspec.json.decode(self._body)
            self._transport.write(HEAD)
            self._write(0, request["max_tokens"], len(request.get("prompt", ())))
        elif self._path.endswith(b"/models"):
            self._write_json({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._write_json({"tokens": list(range(len(WORDS)))})

    def _write_json(self, content: Any) -> None:
        body = msgspec.json.encode(content)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _write(self, position: int, length: int, prompt_tokens: int) -> None:
        if self._transport.is_closing():
            return
        if position < length:
            self._transport.write(WORD_CHUNKS[position % len(WORD_CHUNKS)])
            self._loop.call_soon(self._write, position + 1, length, prompt_tokens)
            return
        finish = {"index": 0, "text": "", "finish_reason": "length"}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": length}
        last = sse(_FRAME | {"choices": [finish]}) + sse(_FRAME | {"choices": [], "usage": usage})
        self._transport.write(last + END)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(StubConnection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - read by the parent process
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
