"""`octavo top --once` tries once; without a view it fails with the reason and advice."""

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from octavo.cli.main import main
from octavo.top.connection import Unavailable, ViewAddress, ViewConnection


@pytest.fixture
def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Busy(http.server.BaseHTTPRequestHandler):
    status = 503

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[429, 503])
def busy_port(request: pytest.FixtureRequest) -> Iterator[int]:
    handler = type("Handler", (Busy,), {"status": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server.server_port
        server.shutdown()


def said(port: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command, which must fail, and return its stderr."""
    assert main(["top", f"127.0.0.1:{port}", "--once"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


def test_a_closed_port_is_reported_with_advice(dead_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(dead_port, capsys) == (
        f"error: cannot reach the server: no server at http://127.0.0.1:{dead_port}:"
        " start one with `octavo serve MODEL`\n"
    )


def test_a_busy_server_is_not_retried(busy_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(busy_port, capsys)
    assert error.startswith("error: cannot reach the server: the server ")
    assert "trying again" not in error


def test_viewers_are_notified_of_a_retry(dead_port: int) -> None:
    watching = ViewConnection(ViewAddress.of(f"127.0.0.1:{dead_port}"), None, 0.25)
    watching.start()
    news = watching.updates.get(timeout=60)
    watching.stop()
    assert isinstance(news, Unavailable)
    assert news.reason.endswith("; trying again")
