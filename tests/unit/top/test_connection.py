"""Unreachable, restarted and non-Octavo servers and missing keys give distinct, helpful messages."""

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Protocol

import msgspec
import pytest

from octavo.errors import ConfigError
from octavo.top import connection
from octavo.top.connection import (
    PermanentFailure,
    ReplicaNotFound,
    Unavailable,
    ViewAddress,
    ViewConnection,
)
from octavo.view import FactsEvent
from patience import HANG_SECONDS
from unit.top.seen import FACTS

EVENT = b"data: " + msgspec.json.encode(FACTS) + b"\n\n"


class Scripted(http.server.BaseHTTPRequestHandler):
    """Sends the responses in `script` in order."""

    script: list[tuple[int, str, bytes]]
    heard: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.heard.append((self.path, self.headers.get("authorization")))
        status, content_type, body = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Start(Protocol):
    def __call__(self, *script: tuple[int, str, bytes]) -> tuple[str, list[tuple[str, str | None]]]:
        """Start a server with these responses; return its address and the list of received paths and keys."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.01)
    servers = []

    def start(*script: tuple[int, str, bytes]) -> tuple[str, list[tuple[str, str | None]]]:
        heard: list[tuple[str, str | None]] = []
        handler = type("Handler", (Scripted,), {"script": list(script), "heard": heard})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", heard

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def connected(url: str, key: str | None = None) -> ViewConnection:
    opened = ViewConnection(ViewAddress.of(url), key, 0.25)
    opened.start()
    return opened


def test_the_key_is_sent_and_events_are_received(scripted: Start) -> None:
    url, heard = scripted((200, "text/event-stream; charset=utf-8", b": ping\n\n" + EVENT + EVENT))
    opened = connected(url + "/v1", "k")
    news = [opened.updates.get(timeout=HANG_SECONDS) for _ in range(3)]
    opened.stop()
    assert msgspec.to_builtins(news[:2]) == msgspec.to_builtins([FACTS, FACTS])
    assert isinstance(news[2], Unavailable)
    assert heard[0] == ("/octavo/view?interval=0.25", "Bearer k")


def test_the_connection_recovers_after_a_restart(scripted: Start) -> None:
    stream = (200, "text/event-stream", EVENT)
    url, _ = scripted(stream, (503, "application/json", b"{}"), (429, "application/json", b"{}"), stream)
    opened = connected(url)
    news = [opened.updates.get(timeout=HANG_SECONDS) for _ in range(5)]
    opened.stop()
    kinds = (FactsEvent, Unavailable, Unavailable, Unavailable, FactsEvent)
    assert all(isinstance(one, kind) for one, kind in zip(news, kinds, strict=True))
    assert "starting" in str(news[2])
    assert "watchers" in str(news[3])


@pytest.mark.parametrize(
    ("status", "content_type", "key", "words"),
    [
        (401, "application/json", None, "needs an API key: set one with --api-key"),
        (401, "application/json", "wrong", "does not accept this API key"),
        (404, "application/json", None, "is not an Octavo server"),
        (200, "text/html", None, "is not an Octavo server"),
    ],
)
def test_permanent_errors_are_not_retried(
    scripted: Start, status: int, content_type: str, key: str | None, words: str
) -> None:
    url, heard = scripted((status, content_type, b"<html>"))
    refusal = connected(url, key).updates.get(timeout=HANG_SECONDS)
    assert isinstance(refusal, PermanentFailure)
    assert words in str(refusal)
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            b'{"error": {"message": "an operator\\nkey is needed", "type": "x"}}',
            "answered: an operator key is needed",
        ),
        (b"<html>", "answered: it does not allow this API key to watch"),
    ],
)
def test_the_servers_reason_for_403_is_shown(scripted: Start, body: bytes, words: str) -> None:
    url, heard = scripted((403, "application/json", body))
    refusal = connected(url, "key").updates.get(timeout=HANG_SECONDS)
    assert isinstance(refusal, PermanentFailure)
    assert words in str(refusal)
    assert len(heard) == 1


def test_closed_ports_and_undecodable_events_are_retried(scripted: Start) -> None:
    opened = connected("127.0.0.1:1")
    reason = opened.updates.get(timeout=HANG_SECONDS)
    opened.stop()
    assert isinstance(reason, Unavailable)
    assert "octavo serve" in reason.reason
    url, heard = scripted((200, "text/event-stream", b'data: {"kind":"other"}\n\n'))
    opened = connected(url)
    assert all("cannot decode an event" in str(opened.updates.get(timeout=HANG_SECONDS)) for _ in range(2))
    opened.stop()
    assert len(heard) >= 2


def test_a_replica_is_requested(scripted: Start) -> None:
    url, heard = scripted((200, "text/event-stream", EVENT))
    opened = ViewConnection(ViewAddress.of(url), None, 0.25, "r 1&")
    assert next(opened.events())
    assert heard == [("/octavo/view?interval=0.25&replica=r%201%26", None)]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (
            b'{"error": {"message": "there is no replica r9", "param": "replica"}}',
            ReplicaNotFound,
            "answered: there is no replica r9",
        ),
        (b'{"error": {"message": "not found"}}', PermanentFailure, "is not an Octavo server"),
    ],
)
def test_an_unknown_replica_is_a_permanent_failure(
    scripted: Start, body: bytes, kind: type[Exception], words: str
) -> None:
    url, _ = scripted((404, "application/json", body))
    with pytest.raises(kind, match=words):
        next(ViewConnection(ViewAddress.of(url), None, 0.25, "r9").events())


def test_a_server_without_replicas_is_understood() -> None:
    fields = msgspec.to_builtins(FACTS)
    del fields["replica"]
    facts = connection.decode_event(msgspec.json.encode(fields))
    assert isinstance(facts, FactsEvent)
    assert (facts.model, facts.replica) == (FACTS.model, "")


def test_a_stopped_connection_is_closed_at_once() -> None:
    """The server counts its watchers, so a connection must not stay open until the next event."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        opened = connected(f"http://127.0.0.1:{silent.getsockname()[1]}")
        accepted, _ = silent.accept()
        with accepted:
            accepted.settimeout(HANG_SECONDS)
            accepted.recv(1 << 16)
            accepted.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            accepted.sendall(b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(EVENT), EVENT))
            assert isinstance(opened.updates.get(timeout=HANG_SECONDS), FactsEvent)
            opened.stop()
            assert accepted.recv(1) == b""


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://a.example/llm/v1/", "https://a.example/llm"),
        ("http://user:secret@a:1", "http://a:1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_valid_addresses(url: str, address: str) -> None:
    assert str(ViewAddress.of(url)) == address


@pytest.mark.parametrize("url", ["", "ftp://a", "http://"])
def test_invalid_addresses_are_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="give one such as"):
        ViewAddress.of(url)
