"""Connections that ask for nothing: probes and clients are answered beside them, and nothing is left."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.conftest import StartAttacked
from attacks.neighbour import AUTHORIZATION, Seen, beside, eventually, num_descriptors, plainly, probe
from patience import HANG_SECONDS
from server.process import Server

pytestmark = pytest.mark.xdist_group("attacks")

SPARE = 8  # descriptors that a server opens with its first requests, and with another engine
FILES = 400  # that the server may have open; half of them are for connections
FEW_FILES = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
MORE_THAN_THE_CAP = 300
HALF_A_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-a: "
KEY_LINE = "".join(f"{name}: {value}\r\n" for name, value in AUTHORIZATION.items()).encode()
NO_BODY_YET = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    + KEY_LINE
    + b"Content-Length: 1000\r\n\r\n{"
)
RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: nothing is waited for


@contextlib.contextmanager
def crowd(server: Server, count: int, *said: bytes) -> Iterator[list[socket.socket]]:
    """So many connections, which say these things by turns and nothing more."""
    with contextlib.ExitStack() as connections:
        crowd = []
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS)
            connections.enter_context(connection)
            with contextlib.suppress(ConnectionError):  # it may have had to make way already
                connection.sendall(said[number % len(said)])
            crowd.append(connection)
        yield crowd


def check_answered(seen: Seen) -> None:
    """One that begins from now on, and comes to its end."""
    answered = len(seen.answers)
    assert eventually(lambda: len(seen.answers) > answered + 1)


def test_silent_connections_make_way(start: StartAttacked) -> None:
    server = start(prefix=FEW_FILES)
    before = num_descriptors(server)
    with beside(server) as seen:
        for _ in range(3):
            with crowd(server, MORE_THAN_THE_CAP, b"", b"GET /", HALF_A_HEAD):
                assert probe(plainly(server), "/readyz") == 200
                assert num_descriptors(server) < FILES
                check_answered(seen)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)
    assert "Traceback" not in server.log


def test_requests_without_an_end_leave_room_for_probes_and_an_engine(start: StartAttacked) -> None:
    """Nobody can be sent away for a new one. Who is being answered still is, and probes are; and should the
    engine die, there are descriptors for another."""
    server = start(prefix=FEW_FILES)
    before = num_descriptors(server)
    engine = server.engine_pid
    assert engine is not None
    with beside(server, max_tokens=2000, once=True), crowd(server, MORE_THAN_THE_CAP, NO_BODY_YET):
        os.kill(engine, signal.SIGKILL)
        for path, status in (("/livez", 200), ("/v1/models", 503), ("/livez", 200)):
            assert probe(plainly(server), path) == status
        assert num_descriptors(server) < FILES
        server.wait_for_log("the engine is ready again")
        assert eventually(lambda: probe(plainly(server), "/readyz") == 200)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)
    assert probe(plainly(server), "/v1/models") == 401
    assert "Traceback" not in server.log


def test_connections_that_are_reset(server: Server) -> None:
    before = num_descriptors(server)
    with beside(server):
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_handshakes_without_an_end(start: StartAttacked, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout {key}".split()
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    server = start("--tls-cert", str(certificate), "--tls-key", str(key), prefix=FEW_FILES)
    trusted = ssl.create_default_context(cafile=str(certificate))
    failed: list[str] = []

    def connect() -> http.client.HTTPConnection:
        """While many come at once the oldest handshake is ended, which may be ours: we try again."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=HANG_SECONDS, context=trusted
        )

        def is_connected() -> bool:
            try:
                connection.connect()
            except OSError as error:
                failed.append(repr(error))
                connection.close()
                return False
            return True

        assert eventually(is_connected)
        return connection

    before = num_descriptors(server)
    engine = server.engine_pid
    assert engine is not None
    with beside(server, connect=connect) as seen:
        with crowd(server, FILES + 100, b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            check_answered(seen)
            failed.clear()  # nobody new comes any more: no handshake of ours is too old
            check_answered(seen)
            assert not failed
            assert num_descriptors(server) < FILES
            os.kill(engine, signal.SIGKILL)
            server.wait_for_log("the engine is ready again")
        assert eventually(lambda: probe(connect, "/readyz") == 200)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)
    assert "Traceback" not in server.log
