"""Concurrent requests, and requests whose answers are not read."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator

from attacks.neighbour import AUTHORIZATION, KEY
from data.json_types import JsonObject
from patience import HANG_SECONDS
from server.hostile import COMPLETIONS
from server.process import Server


def send(server: Server, body: JsonObject, path: str = COMPLETIONS) -> socket.socket:
    """Send a request and return the connection, with the answer unread."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.settimeout(HANG_SECONDS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the kernel buffers little
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(head.encode() + content)
    return connection


@contextlib.contextmanager
def at_once(server: Server, bodies: list[JsonObject]) -> Iterator[dict[int, int]]:
    """Send the requests while the block runs; yields the status of each, by number."""
    statuses: dict[int, int] = {}

    def ask(number: int) -> None:
        statuses[number] = server.post(COMPLETIONS, bodies[number], AUTHORIZATION).status_code

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    yield statuses
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert len(statuses) == len(bodies)
