"""An HTTP server with scripted responses and delays, in a thread of this process."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from data.json_types import Json, JsonObject


@dataclass(frozen=True)
class Piece:
    """One write: a delay in seconds, the text, and its number of tokens."""

    seconds: float
    text: str = " word"
    tokens: int = 1


@dataclass
class FakeServer:
    """`pieces` returns the answer to a request with these fields; `refuse` may return an error instead."""

    pieces: Callable[[JsonObject], list[Piece]] = lambda fields: [Piece(0.0)] * fields["max_tokens"]
    refuse: Callable[[JsonObject], tuple[int, str] | None] = lambda fields: None
    tells_usage: bool = True
    tells_each: bool = False  # send the token count with every chunk
    tells_tokens: bool = True
    closes: bool = False  # close the connection after each answer
    cuts_off: bool = False  # close the connection in the middle of an answer
    waits_for: int = 0  # number of requests that must arrive before the server responds
    cached: int | None = None
    models: tuple[str, ...] = ("fake",)
    asked: list[JsonObject] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    num_connections: int = 0
    url: str = ""

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.keys.append(headers.get("authorization", ""))
                await self.answer(writer, first.split()[1], json.loads(body or b"{}"))
                await writer.drain()
                if self.closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the test has ended
        finally:
            writer.close()

    async def answer(self, writer: asyncio.StreamWriter, path: str, fields: JsonObject) -> None:
        if path == "/v1/models":
            return self.whole(writer, 200, {"data": [{"id": name} for name in self.models]})
        if path == "/tokenize" and self.tells_tokens:
            return self.whole(writer, 200, {"tokens": list(range(100, 200))})
        if not path.endswith("/completions"):
            return self.whole(writer, 404, {"error": {"message": "not here"}})
        self.asked.append(fields)
        refused = self.refuse(fields)
        if refused is not None:
            return self.whole(writer, refused[0], {"error": {"message": refused[1]}})
        await self.stream(writer, fields, is_chat="messages" in fields)

    async def stream(self, writer: asyncio.StreamWriter, fields: JsonObject, *, is_chat: bool) -> None:
        connection = "connection: close\r\n" if self.closes else ""
        writer.write(f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n{connection}\r\n".encode())
        while len(self.asked) < self.waits_for:
            await asyncio.sleep(0.005)
        total = 0
        pieces = self.pieces(fields)
        for number, piece in enumerate(pieces):
            await asyncio.sleep(piece.seconds)
            total += piece.tokens
            finish = "length" if number == len(pieces) - 1 else None
            content = {"delta": {"content": piece.text}} if is_chat else {"text": piece.text}
            event: JsonObject = {"choices": [{"index": 0, "finish_reason": finish, **content}]}
            if self.tells_each:
                event["usage"] = self.usage(fields, total)
            self.event(writer, event)
            if self.cuts_off:
                writer.transport.abort()
                return
        if self.tells_usage:
            self.event(writer, {"choices": [], "usage": self.usage(fields, total)})
        self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")

    def usage(self, fields: JsonObject, completion: int) -> JsonObject:
        counts = {"prompt_tokens": len(fields.get("prompt", "")), "completion_tokens": completion}
        return (
            counts
            if self.cached is None
            else counts | {"prompt_tokens_details": {"cached_tokens": self.cached}}
        )

    @staticmethod
    def event(writer: asyncio.StreamWriter, event: Json) -> None:
        data = b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n"
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    @staticmethod
    def whole(writer: asyncio.StreamWriter, status: int, content: Json) -> None:
        body = json.dumps(content).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    loop = asyncio.new_event_loop()
    started: asyncio.AbstractServer = loop.run_until_complete(
        asyncio.start_server(server.on_connection, "127.0.0.1", 0, backlog=512)
    )
    server.url = f"http://127.0.0.1:{started.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        started.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
