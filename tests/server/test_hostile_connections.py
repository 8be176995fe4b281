"""Malformed HTTP, slow clients, and manipulated host names and paths."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from octavo.config import ServerOptions
from octavo.server.http import connection
from octavo.server.http.connection_limit import ConnectionLimit
from octavo.server.http.errors import ApiError
from octavo.server.http.hosts import Hosts
from patience import HANG_SECONDS
from server.hostile import CHAT, COMPLETIONS, LEAKS
from server.process import Server

pytestmark = pytest.mark.xdist_group("server")

MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\n]*\r\n(.*?)\r\n\r\n", re.DOTALL)


def statuses(port: int, sent: bytes, *, and_leave: bool = False) -> list[int]:
    """Send bytes and return the statuses of all answers until the server closes or stops sending."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as connection:
        with contextlib.suppress(OSError):  # the server may have answered and closed the connection
            connection.sendall(sent)
            if and_leave:
                connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                received += data
    assert not LEAKS.search(received.decode("latin-1")), received
    found = []
    while received:
        head = HEAD.match(received)
        assert head, received
        found.append(int(head[1]))
        (size,) = re.findall(rb"content-length: (\d+)", head[2])
        content, received = received[head.end() :][: int(size)], received[head.end() + int(size) :]
        assert found[-1] < 400 or set(json.loads(content)["error"]) == {"message", "type", "param", "code"}
    return found


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


CLOSE = b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


REQUESTS: list[tuple[bytes, set[int]]] = [
    # Two ends of the body: a proxy and a server that choose differently see different requests.
    (POST + length(BODY) + CHUNKED + CLOSE + b"0\r\n\r\n" + SMUGGLED, {400}),
    (POST + CHUNKED + length(BODY) + CLOSE + b"0\r\n\r\n" + SMUGGLED, {400}),
    (POST + length(BODY) + b"Content-Length: 5\r\n" + CLOSE + BODY, {400}),
    (POST + b"Content-Length: +5\r\n" + CLOSE + BODY, {400}),
    (POST + b"Content-Length: 5, 5\r\n" + CLOSE + BODY, {400}),
    (POST + b"Content-Length: -1\r\n" + CLOSE + BODY, {400}),
    (POST + b"Content-Length: 99999999999999999999\r\n" + CLOSE + BODY, {400}),
    (POST + b"Transfer-Encoding: xchunked\r\n" + CLOSE + BODY, {400}),
    (POST + b"Transfer-Encoding: chunked, identity\r\n" + CLOSE + BODY, {400}),
    (POST + b"Transfer-Encoding : chunked\r\n" + CLOSE + BODY, {400}),
    (POST + CHUNKED + CLOSE + b"zz\r\n" + BODY, {400}),
    (POST + CHUNKED + CLOSE + b"ffffffffffffffffff\r\n" + BODY, {400}),
    (POST + CHUNKED + CLOSE + b"-1\r\n" + BODY, {400}),
    # Lines.
    (b"GET /v1/models HTTP/1.1\nHost: localhost\n" + CLOSE, {200, 400}),
    (MODELS + b" folded: x\r\n" + CLOSE, {200, 400}),
    (MODELS + b"X: a\rb\r\n" + CLOSE, {400}),
    (MODELS + b"X: a\x00b\r\n" + CLOSE, {400}),
    (MODELS + b"X\x00: b\r\n" + CLOSE, {400}),
    (MODELS + b": b\r\n" + CLOSE, {400}),
    (MODELS + b"Accept: application/openmetrics-text; version=\xff.x;q=\r\n" + CLOSE, {200}),
    # Methods.
    (b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400}),
    (b"TRACE /v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {405}),
    (b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400, 404, 405}),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400, 404, 405}),
    (b"get /v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400}),
    # Targets.
    (b"GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {200}),
    (b"GET //v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400, 404}),
    (b"GET /v1/models/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {404}),
    (b"GET /v1/models/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {404}),
    (b"GET /v1%2fmodels HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {200, 404}),
    (b"GET /v1/models/%00 HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {404}),
    (b"GET /v1/models/%ff%zz HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {404}),
    (b"GET /v1/models/\xff HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400, 404}),
    (b"GET /v1/models?" + b"a=b&" * 10000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {200}),
    (b"GET /" + b"x" * 60000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {404}),
    (b"GET /" + b"x" * 90000 + b" HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {431}),
    # Headers that are too large, but arrive at once with the rest of the request.
    (MODELS + b"X: " + b"a" * 70000 + b"\r\n" + CLOSE, {431}),
    (MODELS + b"X: " + b"a" * 60000 + b"\r\n" + CLOSE, {200}),
    (POST + b"X: abcdefgh\r\n" * 6000 + length(BODY) + CLOSE + BODY, {431}),
    (b"GET /v1/models#x HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {200, 400, 404}),
    (b"GET  /v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {200, 400}),
    (b"GET v1/models HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, {400, 404}),
    # Versions and upgrades.
    (b"GET /v1/models HTTP/1.0\r\n\r\n", {200}),
    (b"GET /v1/models\r\n\r\n", {200, 400}),
    (MODELS + b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n", {200}),
    (MODELS + b"Upgrade: h2c\r\nHTTP2-Settings: x\r\nConnection: Upgrade, close\r\n\r\n", {200}),
    (POST + b"Expect: the-unexpected\r\n" + length(BODY) + CLOSE + BODY, {200, 417}),
    (POST + b"Content-Encoding: gzip\r\n" + length(BODY) + CLOSE + BODY, {415}),
    (POST + b"Content-Type: text/plain\r\n" + length(BODY) + CLOSE + BODY, {200, 415}),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + length(BODY) + CLOSE + BODY, {415}),
    (POST + b"Content-Length: 0\r\n" + CLOSE, {400}),
    (POST + CLOSE, {400}),
]


@pytest.mark.parametrize(("sent", "expected"), REQUESTS)
def test_one_request_gets_one_answer(server: Server, sent: bytes, expected: set[int]) -> None:
    """Bytes after a rejected request are not parsed as another request."""
    found = statuses(server.port, sent)
    assert len(found) == 1, (found, sent[:200])
    assert found[0] in expected, (found, sent[:200])


def test_a_truncated_request_is_not_answered_as_if_complete(server: Server) -> None:
    for cut in (b"", CHUNKED[:-4], length(BODY) + CLOSE + BODY[:-1], CHUNKED + CLOSE + b"5\r\nab"):
        assert statuses(server.port, POST + cut, and_leave=True) in ([], [400])
    assert server.get("/readyz").status_code == 200


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    asked = POST + length(BODY) + b"\r\n" + BODY
    found = statuses(server.port, asked + MODELS + b"\r\n" + asked + b"GET /nothing HTTP/1.1\r\n" + CLOSE)
    assert found == [200, 200, 200, 404]
    assert set(statuses(server.port, (MODELS + b"\r\n") * 2000 + MODELS + CLOSE)) == {200}


def test_a_disconnect_cancels_pipelined_requests(server: Server) -> None:
    """None of them is computed to the end, and none is logged as a server error."""
    body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True}).encode()
    asked = POST + length(body) + b"\r\n" + body
    before = server.log.count("length, queue")
    statuses(server.port, asked * 5, and_leave=True)
    server.wait_for_log(r"completions disconnected req_\w+")
    time.sleep(0.5)
    assert server.log.count("length, queue") == before
    assert "Traceback" not in server.log


def test_garbage_after_a_request_does_not_affect_its_answer(server: Server) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
        connection.sendall(POST + length(body) + b"\r\n" + body)
        received = connection.recv(65536)
        connection.sendall(b"\x00nonsense\r\n\r\n")
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                received += data
    assert [status for status, _ in HEAD.findall(received)] == [b"200"]


@pytest.mark.parametrize(
    ("path", "status"), [(COMPLETIONS, 413), ("/nothing", 404), ("/v1/models", 405), ("/livez", 405)]
)
def test_a_gigabyte_in_chunks_is_cut_off_early(server: Server, path: str, status: int) -> None:
    """Also on endpoints that do not read the body: after the answer, the server stops reading."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    sent = 0
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address, timeout=HANG_SECONDS) as connection, contextlib.suppress(OSError):
        connection.sendall(head + CHUNKED + b"\r\n")
        while sent < 1 << 30:
            sent += connection.send(chunk[sent % len(chunk) :])
    assert sent < 64 << 20, "more than the buffers of the kernel was accepted"
    assert server.get("/readyz").status_code == 200
    short = httpx.post(
        server.url + path,
        content=iter([b"x" * 1000]),
        headers={"content-type": "application/json"},
        timeout=HANG_SECONDS,
    )
    assert short.status_code == (400 if status == 413 else status)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the port of a server with short timeouts, whose application answers at once."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connection, "DISCARD_SECONDS", 0.2)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    protocol = connection.BoundedHttpProtocol
    bounded = partial(
        protocol, connection_limit=ConnectionLimit(100, protocol.reject_busy), stalled_seconds=HANG_SECONDS
    )
    config = uvicorn.Config(
        app,
        http=bounded,  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        timeout_keep_alive=1,
    )
    running = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(running.serve([listener])))
        thread.start()
        try:
            port = listener.getsockname()[1]
            served = httpx.get(f"http://127.0.0.1:{port}/", timeout=HANG_SECONDS)
            assert served.text == "ok", "a fast client must be served"
            yield port
        finally:
            running.should_exit = True
            thread.join()


@pytest.mark.parametrize(
    ("first", "drip"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n"),
        (b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n", b"X: y\r\n"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    ],
)
def test_slow_clients_are_cut_off(hasty: int, first: bytes, drip: bytes) -> None:
    """Applies to silence, a head sent in small pieces, and a body that the application does not read."""
    with socket.create_connection(("127.0.0.1", hasty), timeout=HANG_SECONDS) as connection:
        connection.sendall(first)
        started = time.monotonic()
        connection.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - started < HANG_SECONDS:
                connection.sendall(drip)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(65536):
                        break
    assert time.monotonic() - started < HANG_SECONDS


HERE = ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "[::1]", "x.localhost.")
ELSEWHERE = (
    *(
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil-localhost",
    ),
    *("10.0.0.1", "0.0.0.0", "[::2]", "", "localhost@evil.example", "evil.example#localhost", "2130706433"),
    *("localhost evil.example", "\xff", "[::1].evil.example"),
)


def rejection(hosts: Hosts, *given: str) -> int | None:
    try:
        hosts.check({"headers": [(b"host", name.encode("latin-1")) for name in given]})
    except ApiError as error:
        return error.status
    return None


def test_a_loopback_server_accepts_only_loopback_names() -> None:
    """Otherwise a web page whose host name resolves to this machine could read everything (DNS rebinding)."""
    default = Hosts.from_options(ServerOptions())
    assert [rejection(default, name) for name in HERE] == [None] * len(HERE)
    assert [rejection(default, name) for name in ELSEWHERE] == [421] * len(ELSEWHERE)
    assert rejection(default) is None
    assert rejection(default, "localhost", "localhost") == 400


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "10.0.0.1"}, True),
        ({"api_key": "k"}, True),
        ({"api_key_file": "k"}, True),
        ({"allowed_hosts": "*"}, True),
        ({"allowed_hosts": "other, Evil.example:80"}, True),
        ({"allowed_hosts": "other"}, False),
        ({"allowed_hosts": "other", "api_key": "k"}, False),
        ({"allowed_hosts": "other", "host": "0.0.0.0"}, False),
    ],
)
def test_other_host_names_are_allowed_where_safe_or_configured(
    options: dict[str, str], allowed: bool
) -> None:
    hosts = Hosts.from_options(ServerOptions(**options))  # type: ignore[arg-type]
    assert rejection(hosts, "evil.example") == (None if allowed else 421)
    assert rejection(hosts, "127.0.0.1:8000") is None


def test_dns_rebinding_reads_nothing(server: Server) -> None:
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CHAT), ("GET", "/readyz")):
        answer = httpx.request(method, server.url + path, headers={"host": "evil.example"})
        assert answer.status_code == 421
        assert answer.json()["error"]["code"] == "host_not_allowed"
        assert "--allowed-hosts" in answer.json()["error"]["message"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
