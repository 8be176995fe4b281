"""Requests over real sockets, to valid and invalid servers."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from octavo.conformance.suite import with_model
from octavo.conformance.target import CheckTarget
from octavo.conformance.transport import HttpTransport, Request, Unreachable
from octavo.errors import ConfigError, OctavoError

Listen = Callable[[Callable[[socket.socket], None]], str]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """`listen(answer)` starts a server that passes its only connection to `answer`; returns its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = []

        def start(answer: Callable[[socket.socket], None]) -> str:
            def run() -> None:
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

            threads.append(threading.Thread(target=run))
            threads[-1].start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def saying(text: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(text)

    return answer


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:1", "http://a:1/v1"),
        ("http://a:1/", "http://a:1/v1"),
        ("https://a/v1/", "https://a/v1"),
        ("http://a/api/v3", "http://a/api/v3"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://name:secret@a:1", "http://a:1/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_valid_addresses(url: str, expected: str) -> None:
    assert HttpTransport.to(url, 1).url == expected


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "file:///etc"])
def test_invalid_addresses_are_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="not the address"):
        HttpTransport.to(url, 1)


def test_a_reply_is_parsed(listen: Listen) -> None:
    url = listen(saying(b'HTTP/1.1 404 No\r\nX-Request-ID: 7\r\nContent-Length: 8\r\n\r\n{"a": 1}'))
    reply = HttpTransport.to(url, 5)(Request("POST", "/models", {"a": "b"}, b"{}"))
    assert (reply.status, reply.headers["x-request-id"], reply.json) == (404, "7", {"a": 1})


@pytest.mark.parametrize("text", [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123"])
def test_invalid_http_is_unreachable(listen: Listen, text: bytes) -> None:
    with pytest.raises(Unreachable, match="no reply"):
        HttpTransport.to(listen(saying(text)), 5)(Request("GET", "/models"))


def test_endless_pings_cause_a_timeout(listen: Listen) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        try:
            while True:
                connection.sendall(b": ping\n\n")
                time.sleep(0.02)
        except OSError:
            pass  # the client has disconnected, as expected

    with pytest.raises(Unreachable, match=r"within 0\.3 s"):
        HttpTransport.to(listen(answer), 0.3)(Request("GET", "/models"))


def test_the_first_listed_model_is_used(listen: Listen) -> None:
    body = b'{"object": "list", "data": [%s, %s]}' % tuple(
        b'{"id": "%s", "object": "model", "created": 1, "owned_by": "x"}' % name for name in (b"one", b"two")
    )
    url = listen(saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)))
    assert with_model(CheckTarget(HttpTransport.to(url, 5))).model == "one"


def test_a_model_name_is_required_without_a_list(listen: Listen) -> None:
    no_list = saying(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(ConfigError, match="--model"):
        with_model(CheckTarget(HttpTransport.to(listen(no_list), 5)))
    assert with_model(CheckTarget(HttpTransport.to(listen(no_list), 5), "mine")).model == "mine"


def test_a_closed_port_is_reported() -> None:
    with pytest.raises(OctavoError, match="cannot be reached"):
        with_model(CheckTarget(HttpTransport.to("http://127.0.0.1:1", 5)))
