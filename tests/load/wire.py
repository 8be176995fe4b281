"""A client for load tests: it is cheap, and can disconnect, become idle or stop reading at any time.

Ordinary clients hide what these tests measure: when each byte arrived, and how a connection ended.
"""

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from data.json_types import Json
from patience import HANG_SECONDS

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Lost(ConnectionError):
    """The connection ended before the answer did."""


@dataclass
class Answer:
    """The answer to one request; grows while it is read."""

    sent_at: float
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    first_at: float | None = None  # when the first event arrived; pings do not count
    done_at: float | None = None

    @property
    def seconds(self) -> float:
        assert self.done_at is not None
        return self.done_at - self.sent_at

    @property
    def seconds_to_first(self) -> float:
        assert self.first_at is not None, bytes(self.body)
        return self.first_at - self.sent_at

    @property
    def num_events(self) -> int:
        return self.body.count(b"data: ")

    @property
    def json(self) -> Json:
        return json.loads(self.body)

    @property
    def received(self) -> "ReceivedAnswer":
        return ReceivedAnswer.of_stream(self) if b"data: " in self.body else ReceivedAnswer.of_whole(self)


@dataclass(frozen=True)
class ReceivedAnswer:
    """The reproducible contents of one choice, whether it was streamed or not."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: dict[str, list[Json]]
    finish_reasons: tuple[str, ...]
    num_ends: int = 1  # number of [DONE], in a stream

    @classmethod
    def of_whole(cls, answer: Answer) -> "ReceivedAnswer":
        (choice,) = answer.json["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        return cls(text, tuple(choice["token_ids"]), choice["logprobs"] or {}, (choice["finish_reason"],))

    @classmethod
    def of_stream(cls, answer: Answer) -> "ReceivedAnswer":
        """Join the pieces in order of arrival: a lost, repeated or misplaced piece changes the result."""
        text, ids, finishes, ends = "", [], [], 0
        logprobs: dict[str, list[Json]] = {}
        for event in bytes(answer.body).split(b"\n\n"):
            if event == b"data: [DONE]":
                ends += 1
            elif event.startswith(b"data: "):
                (choice,) = json.loads(event[6:])["choices"]
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                ids += choice["token_ids"]
                for name, values in (choice["logprobs"] or {}).items():
                    logprobs.setdefault(name, []).extend(values or [])
                if choice["finish_reason"] is not None:
                    finishes.append(choice["finish_reason"])
        return cls(text, tuple(ids), logprobs, tuple(finishes), ends)


class Connection(asyncio.Protocol):
    """One connection, which sends one request after the other."""

    def __init__(self) -> None:
        self.key: str | None = None  # API key to send
        self.answer: Answer | None = None
        self.is_lost = False
        self._parser = httptools.HttpResponseParser(self)
        self._changed = asyncio.Event()

    @classmethod
    async def open(cls, port: int, receive_buffer: int | None = None) -> "Connection":
        """`receive_buffer` is the approximate size of the kernel's receive buffer in bytes."""
        plain = socket.socket()
        plain.setblocking(False)
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(plain, ("127.0.0.1", port))
            _, connection = await loop.create_connection(cls, sock=plain)
        except BaseException:
            plain.close()
            raise
        return connection

    def send(self, path: str, body: Json = None, *, sent_at: float | None = None) -> Answer:
        """Send a POST, or a GET without a body. The answer fills up as data arrives: see `done`."""
        content = b"" if body is None else json.dumps(body).encode()
        self.send_head(path, len(content) if body is not None else None, sent_at)
        self.transport.write(content)
        assert self.answer is not None
        return self.answer

    def send_head(self, path: str, length: int | None, sent_at: float | None = None) -> None:
        method = "GET" if length is None else "POST"
        kind = "" if length is None else f"content-type: application/json\r\ncontent-length: {length}\r\n"
        key = "" if self.key is None else f"authorization: Bearer {self.key}\r\n"
        self.answer = Answer(time.perf_counter() if sent_at is None else sent_at)
        self.transport.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{key}{kind}\r\n".encode())

    async def until(self, condition: Callable[[Answer], bool]) -> Answer:
        answer = self.answer
        assert answer is not None
        async with asyncio.timeout(HANG_SECONDS):
            while not condition(answer):
                if self.is_lost:
                    raise Lost(f"after {len(answer.body)} bytes of an answer with status {answer.status}")
                self._changed.clear()
                await self._changed.wait()
        return answer

    async def done(self) -> Answer:
        return await self.until(lambda answer: answer.done_at is not None)

    async def begun(self) -> Answer:
        """Wait for the first event of a stream."""
        return await self.until(lambda answer: answer.first_at is not None)

    def disconnect(self) -> None:
        """Close the connection at once, whatever is in flight."""
        self.transport.abort()

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    # -- callbacks of asyncio and httptools ------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._changed.set()

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.answer is not None
        self.answer.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        assert self.answer is not None
        self.answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        answer = self.answer
        assert answer is not None
        answer.body += body
        if answer.first_at is None and b"data: " in body:
            answer.first_at = time.perf_counter()

    def on_message_complete(self) -> None:
        assert self.answer is not None
        self.answer.done_at = time.perf_counter()


async def ask(port: int, path: str, body: Json = None) -> Answer:
    """Send a request on a new connection. The times of the answer include connecting."""
    sent_at = time.perf_counter()
    connection = await Connection.open(port)
    try:
        connection.send(path, body, sent_at=sent_at)
        return await connection.done()
    finally:
        connection.disconnect()


class Gauges:
    """Reads /metrics of one server repeatedly."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, port: int, key: str | None = None) -> "Gauges":
        connection = await Connection.open(port)
        connection.key = key
        return cls(connection)

    async def text(self) -> str:
        self._connection.send("/metrics")
        return (await self._connection.done()).body.decode()

    async def look(self) -> Callable[[str], float]:
        """Scrape once and return a function from names without prefix to values, summed over labels."""
        text = await self.text()

        def value(name: str) -> float:
            found = re.findall(rf"^(?:octavo:)?{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
            assert found, f"{name} is not in /metrics"
            return sum(map(float, found))

        return value

    async def until(self, condition: Callable[[Callable[[str], float]], bool]) -> float:
        """Wait for the condition and return the time when it was observed."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                if condition(await self.look()):
                    return time.perf_counter()

    def close(self) -> None:
        self._connection.disconnect()
