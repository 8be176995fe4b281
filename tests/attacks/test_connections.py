"""Idle and unfinished connections: probes and clients are still answered, and no descriptor leaks."""

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
from attacks.neighbour import AUTHORIZATION, Seen, beside, eventually, num_descriptors, plain_http, probe
from patience import HANG_SECONDS
from server.process import Server

pytestmark = pytest.mark.xdist_group("attacks")

SPARE = 8  # descriptors that a server opens at its first requests, and for a new engine
FILES = 400  # limit of open files of the server; half of them are for connections
FEW_FILES = ("sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
MORE_THAN_THE_CAP = 300
HALF_A_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-a: "
KEY_LINE = "".join(f"{name}: {value}\r\n" for name, value in AUTHORIZATION.items()).encode()
NO_BODY_YET = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    + KEY_LINE
    + b"Content-Length: 1000\r\n\r\n{"
)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of zero: close with a reset


@contextlib.contextmanager
def open_connections(server: Server, count: int, *sent: bytes) -> Iterator[list[socket.socket]]:
    """Open `count` connections, each of which sends one of the given texts and then nothing."""
    with contextlib.ExitStack() as connections:
        opened = []
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS)
            connections.enter_context(connection)
            with contextlib.suppress(ConnectionError):  # the server may have closed it already
                connection.sendall(sent[number % len(sent)])
            opened.append(connection)
        yield opened


def check_answered(seen: Seen) -> None:
    """Wait for an answer that begins from now on and completes."""
    answered = len(seen.answers)
    assert eventually(lambda: len(seen.answers) > answered + 1)


def test_silent_connections_are_replaced(start: StartAttacked) -> None:
    server = start(prefix=FEW_FILES)
    before = num_descriptors(server)
    with beside(server) as seen:
        for _ in range(3):
            with open_connections(server, MORE_THAN_THE_CAP, b"", b"GET /", HALF_A_HEAD):
                assert probe(plain_http(server), "/readyz") == 200
                assert num_descriptors(server) < FILES
                check_answered(seen)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)
    assert "Traceback" not in server.log


def test_unfinished_requests_leave_descriptors_for_probes_and_an_engine(start: StartAttacked) -> None:
    """No connection is idle, so none can be replaced. Running answers and probes are served, and if the
    engine dies, there are descriptors for a new one."""
    server = start(prefix=FEW_FILES)
    before = num_descriptors(server)
    engine = server.engine_pid
    assert engine is not None
    with beside(server, max_tokens=2000, once=True), open_connections(server, MORE_THAN_THE_CAP, NO_BODY_YET):
        os.kill(engine, signal.SIGKILL)
        for path, status in (("/livez", 200), ("/v1/models", 503), ("/livez", 200)):
            assert probe(plain_http(server), path) == status
        assert num_descriptors(server) < FILES
        server.wait_for_log("the engine is ready again")
        assert eventually(lambda: probe(plain_http(server), "/readyz") == 200)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)
    assert probe(plain_http(server), "/v1/models") == 401
    assert "Traceback" not in server.log


def test_reset_connections_leak_no_descriptors(server: Server) -> None:
    before = num_descriptors(server)
    with beside(server):
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_SECONDS) as connection:
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_unfinished_tls_handshakes(start: StartAttacked, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -keyout {key}".split()
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    server = start("--tls-cert", str(certificate), "--tls-key", str(key), prefix=FEW_FILES)
    trusted = ssl.create_default_context(cafile=str(certificate))
    failed: list[str] = []

    def connect() -> http.client.HTTPConnection:
        """Connect, with retries: while many connect at once, the server ends the oldest handshake."""
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
        with open_connections(server, FILES + 100, b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            check_answered(seen)
            failed.clear()  # from now on no new connection can end our handshakes
            check_answered(seen)
            assert not failed
            assert num_descriptors(server) < FILES
            os.kill(engine, signal.SIGKILL)
            server.wait_for_log("the engine is ready again")
        assert eventually(lambda: probe(connect, "/readyz") == 200)
    assert eventually(lambda: num_descriptors(server) <= before + SPARE)
    assert "Traceback" not in server.log
