"""Endless bodies, and framing that is not content: counted, dropped and cut off."""

import contextlib
import json
import socket
import time

import httpx
import pytest

from attacks.neighbour import AUTHORIZATION, KEY, MEBIBYTE, beside, eventually
from data.json_types import JsonObject
from patience import HANG_SECONDS
from server.process import Server

pytestmark = pytest.mark.xdist_group("attacks")

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
WITH_KEY = b"Authorization: Bearer " + KEY.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BODY = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
CHUNK = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
WHAT_THE_KERNEL_HOLDS = 16 * MEBIBYTE
LARGE: JsonObject = {"prompt": "x" * (7 * MEBIBYTE // 2), "max_tokens": 1}


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS)


def first_status(connection: socket.socket) -> int:
    """Return the status of the first answer; 0 if the connection was closed without one."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while b"\r\n" not in received and (data := connection.recv(65536)):
            received += data
    return int(received.split(b" ")[1]) if received else 0


@pytest.mark.parametrize("key", [WITH_KEY, b""], ids=["with a key", "without"])
@pytest.mark.parametrize(
    ("beginning", "rest"),
    [
        (CHUNK, b"a: b\r\n" * 10_000),
        (b"2;", b"a" * 65536),
        (b"", b"1;" + b"a" * 1000 + b"\r\nx\r\n"),
        (b"2\r\n{}\r\n0\r\na: ", b"b" * 65536),
    ],
    ids=["trailers", "a chunk extension", "chunk extensions", "a trailer"],
)
def test_endless_framing_is_cut_off(server: Server, key: bytes, beginning: bytes, rest: bytes) -> None:
    """Trailers once cost 160 MiB per second, and chunk extensions were not counted."""
    sent = 0
    with beside(server), connected(server) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(POST + key + JSON + CHUNKED + beginning)
        while sent < 1 << 30:
            sent += connection.send(rest)
    assert sent < WHAT_THE_KERNEL_HOLDS


@pytest.mark.parametrize(
    ("head", "trailer", "status"),
    [
        (JSON, WITH_KEY, 401),
        (JSON + b"Trailer: authorization\r\n", WITH_KEY, 401),
        (WITH_KEY, JSON, 415),
        (WITH_KEY + JSON, b"Host: evil.example\r\nConnection: close\r\n", 200),
        (WITH_KEY + JSON, b"Content-Length: 5\r\n", 400),  # two lengths of the body
    ],
)
def test_a_trailer_is_not_accepted_as_a_header(
    server: Server, head: bytes, trailer: bytes, status: int
) -> None:
    with connected(server) as connection:
        connection.sendall(POST + head + CHUNKED + CHUNK + trailer + b"\r\n")
        assert first_status(connection) == status


def test_a_comment_in_the_key_file_is_not_a_key(server: Server) -> None:
    for key in ("todo", "# todo", "#"):
        assert server.get("/v1/models", {"authorization": f"Bearer {key}"}).status_code == 401
    assert server.get("/v1/models", AUTHORIZATION).status_code == 200


def test_bytes_in_flight_are_bounded(server: Server) -> None:
    """Bodies that lack their last byte are rejected above the limit, while small requests are accepted."""
    body = json.dumps(LARGE).encode()
    head = POST + WITH_KEY + JSON + b"Content-Length: %d\r\n\r\n" % len(body)
    with beside(server) as seen, contextlib.ExitStack() as connections:
        unfinished = [connections.enter_context(connected(server)) for _ in range(40)]
        for connection in unfinished:
            with contextlib.suppress(ConnectionError):
                connection.sendall(head + body[:-1])
        assert first_status(unfinished[-1]) == 429
        answered = len(seen.answers)
        assert eventually(lambda: len(seen.answers) > answered + 1)
        refused = server.post("/v1/completions", LARGE, AUTHORIZATION)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "too_many_bytes"
        assert int(refused.headers["retry-after"]) >= 1
    assert eventually(lambda: server.post("/v1/completions", LARGE, AUTHORIZATION).status_code == 400)


def test_the_deadline_begins_with_the_first_byte(server: Server) -> None:
    """A body that arrives slowly uses up the time of its own request."""
    body = json.dumps({"prompt": "hi", "max_tokens": 1, "timeout": 0.5}).encode()
    head = POST + WITH_KEY + JSON + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(server) as connection:
        connection.sendall(head)
        assert first_status(connection) == 100  # so that the deadline of the server starts
        time.sleep(0.6)
        connection.sendall(body)
        assert first_status(connection) == 408
    assert httpx.get(server.url + "/livez", timeout=HANG_SECONDS).status_code == 200
